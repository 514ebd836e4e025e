"""Models that go from run to run in a cluster: packed where a run ends, unpacked in every pod of the next one.

A packed model lies in a bucket, which every pod reaches, or in the volume of the run that made it. Only the
coordinator has that volume; it copies the model into its own run's store, and the other pods take it there. So they do
with a model that a manifest names in a bucket: its place is the coordinator's alone to read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rollout.coordinator.context import Packer
from rollout.errors import ModelNotFound, ObjectMissing, SpecError
from rollout.models.fetched import find_fetched, is_fetched
from rollout.models.files import build_cached, default_cache_dir
from rollout.models.packed import CLAIM, PackedModel, is_unpacked, pack, parse_packed, unpack
from rollout.models.roles import further_models
from rollout.objects.opening import Role, open_place, open_store
from rollout.objects.reading import ObjectFiles
from rollout.runs.fetching.sources import fetch_sources
from rollout.runs.pipeline import materialise_model
from rollout.seams import ObjectSource, ObjectStore
from rollout.types import WeightVersion
from rollout.weights.merging import dense_weights
from rollout.weights.mirror import WeightFiles
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import WorkerConfig, WorkerOrder

PACKED_SIZE_MAX = "8Ti"
OWN = "own://run"
"""Stands for the run's own store."""
POLICY = ""
"""The role of the model that is trained."""


def build_packer(config: WorkerConfig) -> Packer | None:
    """How a version becomes a model for other runs; None where nobody could find it."""
    return None if config.layout.objects_uri is None else partial(pack_version, config)


def pack_version(config: WorkerConfig, store: ObjectStore, version: WeightVersion) -> str:
    """Store the version as a whole model, with configuration and tokenizer; its URI. Raises StoreError."""
    place = config.layout.objects_uri
    assert place is not None
    with TemporaryDirectory(dir=config.layout.run_dir) as name:
        scratch = Path(name)
        weights = WeightFiles(store, scratch).path(version.object)
        folder = materialise_model(
            config_path=Path(config.resolved.model_path),
            weights=dense_weights(config, weights, scratch),
            target=scratch / "model",
            score_pad_id=config.resolved.pad_token_id if config.spec.trains_scorer else None,
            chat_template=config.spec.model.chat_template,
        )
        return str(PackedModel(place=place, digest=store.put_parts(pack(folder))))


def bring_models(order: WorkerOrder) -> dict[str, str]:
    """Folders of all packed models of a run, by role, in the coordinator's pod. Raises StoreError, SpecError, ModelNotFound."""
    found: dict[str, str] = {}
    for role, packed in _named(order).items():
        brought = _bring(order, packed)
        found[role] = str(unfold(lambda path=brought: path, packed))
    return found


def fetch_far(order: WorkerOrder) -> dict[str, str]:
    """Copy models and data of buckets and of the web into the coordinator's pod, and give the models to the others.

    Returns the objects of the run's own store that hold them, by role. Raises ModelNotFound and DataNotFound with the
    field; SpecError, StoreError and PlaceUnreachable.
    """
    named, uris = _named(order), _uris(order)
    fetch_sources(order.spec, besides={str(uris[role]) for role in named})
    far = {role: str(uri) for role, uri in uris.items() if is_fetched(uri or "")}
    copies = {role: _copy_of(uri) for role, uri in far.items() if role not in named}
    if not copies:
        return {}
    own = open_store(order, "coordinator")
    return {role: own.put_parts(pack(folder)) for role, folder in copies.items()}


def _copy_of(uri: str) -> Path:
    copy = find_fetched(uri, default_cache_dir())
    assert copy is not None
    return copy.path


def find_brought(config: WorkerConfig) -> frozenset[str]:
    """The objects that ``bring_models`` and ``fetch_far`` may have put into this run's own store."""
    named = {packed.digest for packed in _named(config).values()}
    return frozenset({*named, *config.resolved.packed_models.values()})


def take_models(
    order: WorkerOrder, role: Role, packed_models: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The same in another pod; ``packed_models`` are what ``fetch_far`` returned. Raises StoreError, SpecError, ModelNotFound."""
    own = {
        name: PackedModel(place=OWN, digest=digest)
        for name, digest in (packed_models or {}).items()
    }
    return {
        name: str(unfold(partial(_take, order, role, packed), packed))
        for name, packed in {**_named(order), **own}.items()
    }


def _take(order: WorkerOrder, role: Role, packed: PackedModel) -> Path:
    return _fetch(_reach(order, role, packed), packed)


def _uris(order: WorkerOrder) -> Mapping[str, str | None]:
    uris = {one.role: one.source.uri for one in further_models(order.spec)}
    return {POLICY: order.spec.model.uri, **uris}


def _named(order: WorkerOrder) -> Mapping[str, PackedModel]:
    found = {role: parse_packed(uri) for role, uri in _uris(order).items()}
    return {role: packed for role, packed in found.items() if packed is not None}


def _bring(order: WorkerOrder, packed: PackedModel) -> Path:
    if not packed.place.startswith(CLAIM):
        return _fetch(_reach(order, "coordinator", packed), packed)
    own = open_store(order, "coordinator")
    if not own.has(packed.digest):
        own.put_file(_fetch(_claimed(order, packed), packed))
    return own.path(packed.digest)


def _fetch(place: ObjectSource, packed: PackedModel) -> Path:
    try:
        return place.path(packed.digest)
    except ObjectMissing as error:
        raise ModelNotFound(f"model {packed}: {error}") from error


def _claimed(order: WorkerOrder, packed: PackedModel) -> ObjectSource:
    folder = order.layout.sources_dir
    place = Path(folder or "/nowhere") / packed.place.removeprefix(CLAIM)
    if not place.is_dir():
        raise ModelNotFound(
            f"model {packed}: the volume of the run that made it is not here ({place}); suspend and resume"
            " this run while that volume exists, or keep objects in a bucket (storage.uri)"
        )
    return ObjectFiles(place)


def _reach(order: WorkerOrder, role: Role, packed: PackedModel) -> ObjectSource:
    if packed.place == OWN or packed.place.startswith(CLAIM):
        return open_store(order, role)
    root, _, uid = packed.place.rpartition("/")
    own = order.spec.storage or Storage()
    if not uid:
        raise SpecError(f"model {packed}: expected a place below storage.uri")
    place = own.model_copy(update={"uri": root})
    return open_place(place, uid, Path(order.layout.objects_dir))


def fetch_packed(storage: Storage, packed: PackedModel, scratch: Path) -> Path:
    """A packed model's folder in this machine's cache, from its bucket, which ``storage`` reaches, where it is not there yet.

    ``scratch`` holds the object while it is unpacked. Raises StoreError, ModelNotFound.
    """
    root, _, uid = packed.place.rpartition("/")
    place = storage.model_copy(update={"uri": root, "cache_size": PACKED_SIZE_MAX})
    try:
        return unfold(lambda: _fetch(open_place(place, uid, scratch), packed), packed)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def unfold(fetch: Callable[[], Path], model: PackedModel) -> Path:
    """The folder of a packed model in this machine's cache: exactly its files. Raises StoreError.

    ``fetch`` gives the object, where the folder is not there yet.
    """
    name = model.digest.replace(":", "-")
    return build_cached(
        default_cache_dir(),
        name,
        lambda folder: unpack(fetch(), folder),
        lambda folder: is_unpacked(folder, model.digest),
    )
