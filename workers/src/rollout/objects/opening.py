"""Which object store a run has, from its configuration. What a URI names is said by ``rollout.objects.places``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rollout.common.quantities import parse_quantity
from rollout.objects.cache import CACHE_BYTES_MAX, Cache
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.contract import NamedObjects
from rollout.objects.named.folder import FolderObjects
from rollout.objects.places import (
    is_bucket,
    open_bucket,
    open_named,
    parse_bucket,
    parse_folder,
    require_bucket,
    require_folder,
)
from rollout.objects.reading import ObjectFiles
from rollout.objects.remote import Bucket, Remote, RemoteStore
from rollout.seams import ObjectSource, ObjectStore
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import WorkerConfig, WorkerOrder

Role = Literal["coordinator", "learner", "actor", "operator"]


def open_store(config: WorkerOrder, role: Role) -> ObjectStore:
    """The store that ``spec.storage`` names, as a process of ``role`` reaches it.

    ``layout.objectsDir`` is the store itself, or the folder of verified copies before one that is far
    away. Raises SpecError and StoreError.
    """
    storage, folder = config.spec.storage or Storage(), Path(config.layout.objects_dir)
    if storage.uri is not None:
        return open_place(storage, config.run.uid, folder)
    if config.layout.objects_served and role != "coordinator":
        return RemoteStore(_served(config, role), _cache(storage, folder))
    return FilesystemStore(folder)


def open_names(config: WorkerOrder) -> NamedObjects:
    """What lies by name beside the store that the coordinator opens. Raises SpecError."""
    storage = config.spec.storage or Storage()
    if storage.uri is None:
        return FolderObjects(Path(config.layout.objects_dir))
    uri = f"{storage.uri.rstrip('/')}/{config.run.uid}"
    return open_named(
        uri, endpoint=storage.endpoint, region=storage.region, kms_key=storage.kms_key
    )


def open_source(config: WorkerConfig, folder: Path) -> ObjectSource:
    """A run's objects for reading, from its folder ``objects/`` (which may have moved) or from their place."""
    storage = config.spec.storage
    if storage is None or storage.uri is None:
        return ObjectFiles(folder)
    return open_place(storage, config.run.uid, folder)


def open_place(storage: Storage, uid: str, folder: Path) -> ObjectStore:
    """The store at ``storage.uri``, below the run's UID. Raises SpecError for what is not known."""
    uri = (storage.uri or "").rstrip("/")
    root = parse_folder(uri)
    if root is not None:
        return FilesystemStore(root / uid)
    bucket = open_bucket(bucket_of(storage, f"{uri}/{uid}"))
    return RemoteStore(bucket, _cache(storage, folder))


def bucket_of(storage: Storage, uri: str) -> Bucket:
    """A prefix of the bucket as the spec's ``storage`` reaches it. Raises SpecError."""
    return parse_bucket(
        uri, endpoint=storage.endpoint, region=storage.region, kms_key=storage.kms_key
    )


def require_place(storage: Storage | None) -> str:
    """What the owner of the place should know, empty where that is nothing.

    Raises PlaceUnreachable, with the fix, where a run could not keep its objects there now.
    """
    if storage is None or storage.uri is None:
        return ""
    folder = parse_folder(storage.uri)
    if folder is not None:
        require_folder(folder)
        return ""
    if not is_bucket(storage.uri):
        return ""
    return require_bucket(bucket_of(storage, storage.uri))


def _served(config: WorkerOrder, role: Role) -> Remote:
    from rollout.objects.coordinator_remote import ServedRemote
    from rollout.protocol.auth import open_credential
    from rollout.protocol.tls import open_trust, require_safe

    assert role != "coordinator"
    url, trust = config.layout.coordinator_url, open_trust(config.layout)
    require_safe(url)
    token = open_credential(config, role)
    return ServedRemote(url, token, None if trust is None else trust.context)


def _cache(storage: Storage, folder: Path) -> Cache:
    return Cache(
        folder,
        CACHE_BYTES_MAX if storage.cache_size is None else parse_quantity(storage.cache_size),
    )
