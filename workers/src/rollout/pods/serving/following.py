"""The weights that a run at work saves, as folders: which is the newest stands in a file, where they lie in the pod's order.

The file is a ConfigMap's, which people of the namespace may write as well: it names objects by digest and no place, so that
whatever it says comes from the place of that one run. Each object is held against its name, and the weights, which deltas may
lead to, against the digest that the learner gave them.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from rollout.errors import ObjectMissing, SpecError, StoreError
from rollout.objects.opening import open_place
from rollout.pods.serving.snapshot import OBJECTS_SIZE_MAX, check_weights
from rollout.runs.pipeline import materialise_model
from rollout.serving.targets import FedVersion
from rollout.weights.mirror import WeightFiles
from rollout_api.serving import LiveOrder, LiveVersion
from rollout_api.v1alpha1.storage import Storage

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 4096
KNOWN_MAX = 256
"""Versions whose names are remembered."""


class FollowedRun:
    """A run whose weights are served as it saves them. ``base``: the folder of the model that it began with.

    ``scratch`` holds objects while a version is made of them, and is removed after each.
    """

    def __init__(self, order: LiveOrder, storage: Storage, base: Path, scratch: Path) -> None:
        self._order = order
        self._storage = storage
        self._base = base
        self._scratch = scratch
        self._known: dict[str, LiveVersion] = {}

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._order.name

    def newest(self) -> FedVersion | None:
        """What the file says now; None where it is of another run of the name. Raises SpecError for a file that says nothing."""
        found = read_version(Path(self._order.file))
        if found.run != self._order.run:
            return None
        name = self._name(found)
        before = [item for item in self._known.items() if item[0] != name]
        self._known = {name: found, **dict(before[: KNOWN_MAX - 1])}
        return FedVersion(name=name, digest=found.digest)

    def fetch(self, version: FedVersion, target: Path) -> Path:
        """The folder ``target`` with a version that ``newest`` has named. Raises StoreError."""
        found = self._known[version.name]
        try:
            folder = self._make(found, target)
        except ObjectMissing as error:
            raise StoreError(
                f"run {self.run} does not keep the weights of step {found.step} any more: it saves faster than they are taken"
                f" up, or its objects are gone ({error})"
            ) from error
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        log.info("fetched version=%s digest=%s", version.name, version.digest)
        return folder

    def _make(self, found: LiveVersion, target: Path) -> Path:
        root, _, run = self._order.place.rpartition("/")
        place = self._storage.model_copy(update={"uri": root, "cache_size": OBJECTS_SIZE_MAX})
        mirror = self._scratch / "mirror"
        mirror.mkdir(parents=True, exist_ok=True)
        store = open_place(place, run, self._scratch / "objects")
        weights = WeightFiles(store, mirror).path(found.object)
        return materialise_model(
            config_path=self._base,
            weights=check_weights(weights, found.step, found.digest),
            target=target,
            chat_template=self._order.chat_template,
        )

    def _name(self, found: LiveVersion) -> str:
        """By the step; a run that went back may come by a step again, with other weights."""
        name = f"{self.run}@{found.step}"
        same = self._known.get(name)
        if same is None or same.digest == found.digest:
            return name
        return f"{name}-{found.digest.partition(':')[2][:8]}"


def read_version(path: Path) -> LiveVersion:
    """The content of the file. Raises SpecError."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX)
        return LiveVersion.model_validate_json(text)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} names no version of a run: {error}") from error
