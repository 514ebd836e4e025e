"""Where snapshots lie: in the objects of this machine's runs, or in any folder or bucket that is named.

Reading opens nothing for writing; a place is made only by who stores into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from rollout.errors import SpecError
from rollout.models.files import scratch_dir
from rollout.objects.cache import Cache
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.contract import NamedObjects
from rollout.objects.named.folder import FolderObjects
from rollout.objects.places import open_bucket, open_named, parse_bucket, parse_folder
from rollout.objects.reading import ObjectFiles
from rollout.objects.remote import RemoteStore
from rollout.runs.run_dir import RunDir, find_run, runs_home
from rollout.seams import ObjectSource, ObjectStore
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import SnapshotPlace, look_up, not_found
from rollout.snapshots.processes.cell import FOLDER as PROCESSES
from rollout_api.worker import WorkerConfig


class OpenStore(Protocol):
    """Opens the store of a place, for writing."""

    def __call__(self) -> ObjectStore:
        """The store. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlace:
    """A place that may hold snapshots. ``run`` is the one of this machine whose own objects these are, if any.

    ``uid`` is the last part of its address: a run's own place is named after it.
    """

    where: str
    uid: str
    named: NamedObjects
    source: ObjectSource
    open_store: OpenStore
    run: RunDir | None = None

    def open(self) -> SnapshotPlace:
        """The place, to be written. Raises StoreError."""
        return SnapshotPlace(store=self.open_store(), named=self.named)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereToLook:
    """Which places a command is about; nothing said: those of the runs under ROLLOUT_HOME.

    ``object_path`` is a folder or bucket of objects, ``storage_path`` a run's folder or the ledger in it; a restore takes
    snapshots of this installation and of the signers in ``trust``.
    """

    object_path: str | None = None
    storage_path: str | None = None
    endpoint: str | None = None
    region: str | None = None
    trust: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A snapshot, and a place that has it."""

    manifest: Manifest
    place: KnownPlace


def list_places(where: WhereToLook) -> Iterator[KnownPlace]:
    """Every place of a command. Raises SpecError for one that there is not."""
    if where.object_path is not None:
        yield open_object_path(where, must_exist=True)
    elif where.storage_path is not None:
        yield place_of_run(run_at(where.storage_path))
    else:
        for config in sorted(runs_home(os.environ).glob("*/worker.json")):
            yield place_of_run(RunDir(path=config.parent))
        if (images := images_folder(runs_home(os.environ))).is_dir():
            yield _folder(images, images.name, None)


def images_folder(home: Path) -> Path:
    """Where images of processes lie that were put nowhere else."""
    return home / PROCESSES / "objects"


def find_snapshot(snapshot: str, where: WhereToLook) -> Found:
    """A snapshot by its id. Raises SnapshotRefused where no place has it."""
    for place in list_places(where):
        manifest = look_up(place.named, snapshot)
        if manifest is not None:
            return Found(manifest=manifest, place=place)
    raise not_found(snapshot)


def run_at(given: str) -> RunDir:
    """A run by its folder, the ledger in it, or its name. Raises SpecError."""
    path = Path(given)
    return RunDir(path=find_run(str(path.parent) if path.name == "ledger.db" else given))


def read_config(run: RunDir) -> WorkerConfig:
    """A run's configuration. Raises SpecError where it cannot be read."""
    try:
        return WorkerConfig.model_validate_json(run.worker_config.read_bytes())
    except (OSError, ValueError) as error:
        raise SpecError(f"{run.worker_config} cannot be read: {error}") from error


def place_of_run(run: RunDir) -> KnownPlace:
    """Where a run of this machine keeps its objects."""
    config = read_config(run)
    storage = config.spec.storage
    if storage is None or storage.uri is None:
        return _folder(run.objects, run.name, run)
    uri = f"{storage.uri.rstrip('/')}/{config.run.uid}"
    return _at_uri(uri, storage.endpoint, storage.region, run, storage.kms_key)


def open_object_path(where: WhereToLook, *, must_exist: bool) -> KnownPlace:
    """The place that ``--object-path`` (or ``--to``) names. Raises SpecError."""
    given = where.object_path or ""
    if "://" in given:
        return _at_uri(given.rstrip("/"), where.endpoint, where.region, None)
    if where.endpoint or where.region:
        raise SpecError(f"--endpoint and --region are of a bucket, and {given} is a folder")
    folder = Path(given).expanduser().absolute()
    if (folder / "worker.json").exists():
        return place_of_run(RunDir(path=folder))
    if must_exist and not folder.is_dir():
        raise SpecError(f"--object-path {given}: there is no such folder")
    owner = RunDir(path=folder.parent)
    owned = folder == owner.objects and owner.worker_config.exists()
    return _folder(folder, folder.name, owner if owned else None)


def _at_uri(
    uri: str,
    endpoint: str | None,
    region: str | None,
    run: RunDir | None,
    kms_key: str | None = None,
) -> KnownPlace:
    folder = parse_folder(uri)
    if folder is not None:
        return _folder(folder, folder.name, run)
    bucket = parse_bucket(uri, endpoint=endpoint, region=region, kms_key=kms_key)
    if not bucket.prefix:
        raise SpecError(f"{uri}: expected a prefix after the bucket, such as {uri}/snapshots")
    store = RemoteStore(open_bucket(bucket), Cache(scratch_dir() / "snapshots"))
    return KnownPlace(
        where=uri,
        uid=uri.rpartition("/")[2],
        named=open_named(uri, endpoint=endpoint, region=region, kms_key=kms_key),
        source=store,
        open_store=lambda: store,
        run=run,
    )


def _folder(folder: Path, uid: str, run: RunDir | None) -> KnownPlace:
    return KnownPlace(
        where=str(folder),
        uid=uid,
        named=FolderObjects(folder),
        source=ObjectFiles(folder),
        open_store=partial(FilesystemStore, folder),
        run=run,
    )
