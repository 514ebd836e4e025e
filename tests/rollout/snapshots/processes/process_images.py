"""A dump as CRIU leaves it, without CRIU, and an image of it."""

from __future__ import annotations

from pathlib import Path

from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.folder import FolderObjects
from rollout.snapshots.manifest import Manifest, RunFacts, SnapshotHeader
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.processes.image import ImageFacts, OpenedImage, pack_dump
from rollout.snapshots.processes.pages import PAGE_BYTES
from rollout.snapshots.saving import save_snapshot

SECRET = b"the password of the database"


def opened_place(folder: Path) -> SnapshotPlace:
    """A place in a folder."""
    return SnapshotPlace(
        store=FilesystemStore(folder / "objects"), named=FolderObjects(folder / "objects")
    )


def dump_folder(folder: Path, salt: bytes = b"") -> Path:
    """Some pages, one of zeros, and small files that hold secrets, too."""
    folder.mkdir()
    page = (SECRET + salt).ljust(PAGE_BYTES, b".")
    (folder / "pages-1.img").write_bytes(page + bytes(PAGE_BYTES) + b"y" * PAGE_BYTES)
    (folder / "pages-2.img").write_bytes(page)
    (folder / "core-1001.img").write_bytes(SECRET)
    (folder / "dump.log").write_text("not of the image")
    return folder


def facts_of(_dump: Path) -> ImageFacts:
    """What it relies on."""
    return ImageFacts(root=1001, pipe=7, argv=("program",), digest="ab", files=())


def read_whole(image: OpenedImage) -> dict[str, bytes]:
    """Every file of an image, as CRIU is given it."""
    with image.pages as pages:
        read = {
            name: b"".join([bytes(one) for batch in pages.batches(name) for one in batch])
            for name in pages.names()
        }
    return {**image.files, **read}


def save_dump(
    place, dump: Path, sealer, signer, base: Manifest | None = None, uid: str = "uid"
) -> Manifest:
    """The image of a dump, signed."""
    layer = None if base is None else base.layer("process")
    packed = pack_dump(dump, facts_of(dump), sealer, place.store, layer, 1)
    run = RunFacts(
        name="program",
        namespace="",
        uid=uid,
        algorithm="process",
        spec_digest="",
        identity_format=0,
        identity={},
        contents={},
        dtype="",
        threads=0,
    )
    header = SnapshotHeader(
        created_at=1.0 if base is None else base.header.created_at + 1,
        label="",
        run=run,
        lineage=0,
        step=0,
        chain="ab",
        grade="exact",
        runtime={"machine": "m"},
    )
    return save_snapshot(place, header, [packed.taken], signer)
