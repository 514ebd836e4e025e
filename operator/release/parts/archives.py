"""Reads an image from the archive that a builder wrote (``oci-archive:`` of buildah, ``type=oci`` of buildx).

The archive comes from a builder, perhaps over a share: members are read by name, regular files only, and nothing is
kept that the image's manifest does not reach with the right digest. The builder's word for what it built is two labels.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release import oci
from release.errors import LayoutError

MEMBER = re.compile(r"(?:\./)?(oci-layout|index\.json|blobs/sha256/[0-9a-f]{64})")
IGNORED = re.compile(r"(?:\./)?(manifest\.json|repositories)")
"""What docker writes beside a layout for readers of its old format."""
MEMBERS_MAX = 4096
VERSION_LABEL = "org.opencontainers.image.version"
REVISION_LABEL = "org.opencontainers.image.revision"


def labels_of(version: str, revision: str) -> dict[str, str]:
    """What an image of a release says of itself, by label."""
    return {VERSION_LABEL: version, REVISION_LABEL: revision}


def add_image(
    archive: Path, layout: oci.LayoutWriter, tag: str, labels: Mapping[str, str], scratch: Path
) -> oci.Descriptor:
    """Take the one image of an archive into a layout.

    ``labels`` is what the image's config has to say, by name; ``scratch`` a folder that does not exist yet, on a disk
    with room for the image.

    Raises:
        LayoutError: the archive is no layout, holds something else, or is of another version.
    """
    try:
        _unpack(archive, scratch)
        top = _find_image(scratch, labels)
        for blob in oci.walk(scratch, top):
            layout.add_file(oci.blob_path(scratch, blob.digest), blob)
        layout.add_tag(top, tag)
    except LayoutError as error:
        raise LayoutError(f"{archive}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return top


def _find_image(root: Path, labels: Mapping[str, str]) -> oci.Descriptor:
    tags = oci.read_tags(root)
    if len(tags) != 1:
        raise LayoutError(f"expected one image, found {len(tags)}: {', '.join(sorted(tags))}")
    (said,) = tags.values()
    top = oci.Descriptor(media_type=said.media_type, digest=said.digest, size_bytes=said.size_bytes)
    if found := find_wrong_labels(root, top, labels):
        raise LayoutError("; ".join(found))
    return top


def find_wrong_labels(root: Path, top: oci.Descriptor, labels: Mapping[str, str]) -> list[str]:
    """Each label that a config of the image lacks, or has with another value.

    Raises:
        LayoutError: a manifest or config that cannot be read.
    """
    found = []
    for config in _configs(root, top):
        held = _labels(config)
        found += [
            f"label {name} is {held.get(name)!r:.80}, expected {value!r}"
            for name, value in labels.items()
            if held.get(name) != value
        ]
    return found


def _labels(config: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = config.get("config")
    held = settings.get("Labels") if isinstance(settings, dict) else None
    return held if isinstance(held, dict) else {}


def _configs(root: Path, top: oci.Descriptor) -> list[dict[str, Any]]:
    document = oci.read_document(oci.read_blob(root, top), top.digest)
    if top.media_type == oci.INDEX_TYPE:
        children = oci.descriptors_of(document.get("manifests"), top.digest)
        return [one for child in children for one in _configs(root, child)]
    (config,) = oci.descriptors_of([document.get("config")], top.digest)
    if config.media_type != oci.CONFIG_TYPE:
        raise LayoutError(f"{top.digest}: {config.media_type!r:.80} is no config of an image")
    return [oci.read_document(oci.read_blob(root, config), config.digest)]


def _unpack(archive: Path, target: Path) -> None:
    (target / "blobs" / "sha256").mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:") as opened:
            for count, member in enumerate(opened, start=1):
                if count > MEMBERS_MAX:
                    raise LayoutError(f"more than {MEMBERS_MAX} members")
                _unpack_member(opened, member, target)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise LayoutError(f"no archive of a layout that can be read: {error}") from error


def _unpack_member(opened: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir() or (member.isreg() and IGNORED.fullmatch(member.name)):
        return
    name = MEMBER.fullmatch(member.name)
    if name is None or not member.isreg() or member.issparse():
        raise LayoutError(f"member {member.name!r:.120} is none of a layout")
    path = target / name.group(1)
    if path.exists():
        raise LayoutError(f"member {member.name!r:.120} is there twice")
    source = opened.extractfile(member)
    assert source is not None
    with source, path.open("wb") as written:
        shutil.copyfileobj(source, written, 1 << 20)
