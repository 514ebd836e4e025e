"""OCI image layouts: equal bytes for equal content when written, believed in nothing when read.

A layout is one repository of a registry: its manifests with their tags, and the blobs that they name by digest.
https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from release.errors import LayoutError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
TAG = "org.opencontainers.image.ref.name"
LAYOUT_FILE, INDEX_FILE = "oci-layout", "index.json"
LAYOUT_TEXT = b'{"imageLayoutVersion":"1.0.0"}'
DOCUMENT_BYTES_MAX = 4 << 20
"""Of a manifest, an index or a config: what registries take."""
DESCRIPTORS_MAX = 1024
DEPTH_MAX = 3
"""An index of indexes of manifests is the deepest that is read."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Names bytes: what they are, their SHA-256 as ``sha256:<hex>``, and how many."""

    media_type: str
    digest: str
    size_bytes: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    """As OCI has them; empty where there are none."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        plain = {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}
        return plain | ({"annotations": dict(self.annotations)} if self.annotations else {})


@dataclass(slots=True, kw_only=True)
class LayoutWriter:
    """A layout that grows; ``close`` writes its index."""

    root: Path
    tagged: dict[str, Descriptor] = field(default_factory=dict)

    def add_blob(self, data: bytes, media_type: str) -> Descriptor:
        """Bytes in memory, kept once however often they are added."""
        found = describe(data, media_type)
        path = self._prepare(found)
        if not path.exists():
            path.write_bytes(data)
        return found

    def add_file(self, source: Path, descriptor: Descriptor) -> None:
        """Bytes of a file that ``read_blob`` or ``walk`` has compared with this descriptor."""
        path = self._prepare(descriptor)
        if not path.exists():
            shutil.copyfile(source, path)

    def add_manifest(self, manifest: Mapping[str, Any], tag: str) -> Descriptor:
        """A manifest under a tag of its own."""
        found = self.add_blob(to_bytes(manifest), MANIFEST_TYPE)
        self.add_tag(found, tag)
        return found

    def add_tag(self, descriptor: Descriptor, tag: str) -> None:
        """Name a manifest or index that is there."""
        assert tag not in self.tagged
        self.tagged[tag] = descriptor

    def close(self) -> None:
        """Write what makes the folder a layout."""
        entries = [
            one.to_json() | {"annotations": {TAG: tag}} for tag, one in sorted(self.tagged.items())
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}
        (self.root / INDEX_FILE).write_bytes(to_bytes(index))
        (self.root / LAYOUT_FILE).write_bytes(LAYOUT_TEXT)

    def _prepare(self, descriptor: Descriptor) -> Path:
        path = blob_path(self.root, descriptor.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """The same bytes for the same document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def describe(data: bytes, media_type: str) -> Descriptor:
    """The descriptor of bytes in memory."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Descriptor(media_type=media_type, digest=digest, size_bytes=len(data))


def build_manifest(
    config: Descriptor,
    layers: Sequence[Descriptor],
    annotations: Mapping[str, str],
    *,
    artifact_type: str = "",
    subject: Descriptor | None = None,
) -> dict[str, Any]:
    """A manifest; ``subject`` is the one that it says something about."""
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.to_json(),
        "layers": [one.to_json() for one in layers],
    }
    if annotations:
        manifest["annotations"] = dict(annotations)
    if artifact_type:
        manifest["artifactType"] = artifact_type
    if subject is not None:
        manifest["subject"] = subject.to_json()
    return manifest


def blob_path(root: Path, digest: str) -> Path:
    """Where a blob lies.

    Raises:
        LayoutError: the digest is no SHA-256, whatever path it would have become.
    """
    if not DIGEST.fullmatch(digest):
        raise LayoutError(f"digest {digest!r:.120}: expected sha256: and 64 hexadecimal digits")
    return root / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read_tags(root: Path) -> dict[str, Descriptor]:
    """The manifests of a layout by tag; one without a tag is under its digest.

    Raises:
        LayoutError: not a layout, or two manifests under one tag.
    """
    said = read_document(read_bounded(root / LAYOUT_FILE), LAYOUT_FILE)
    if said.get("imageLayoutVersion") != "1.0.0":
        raise LayoutError(f"{LAYOUT_FILE}: expected imageLayoutVersion 1.0.0")
    index = read_document(read_bounded(root / INDEX_FILE), INDEX_FILE)
    tags: dict[str, Descriptor] = {}
    for descriptor in descriptors_of(index.get("manifests"), INDEX_FILE):
        tag = descriptor.annotations.get(TAG, descriptor.digest)
        if tag in tags:
            raise LayoutError(f"{INDEX_FILE}: two manifests are tagged {tag!r:.120}")
        tags[tag] = descriptor
    return tags


def walk(root: Path, top: Descriptor) -> Iterator[Descriptor]:
    """What a manifest or index reaches, itself last, each compared with its digest before it is given.

    Raises:
        LayoutError: a blob is missing or another, or there are more than are read.
    """
    yield from _walk(root, top, depth=1, seen=set())


def _walk(root: Path, top: Descriptor, *, depth: int, seen: set[str]) -> Iterator[Descriptor]:
    if top.digest in seen:
        return
    seen.add(top.digest)
    if depth > DEPTH_MAX or len(seen) > DESCRIPTORS_MAX:
        raise LayoutError(f"{top.digest}: more than {DESCRIPTORS_MAX} blobs or {DEPTH_MAX} levels")
    if top.media_type == INDEX_TYPE:
        index = read_document(read_blob(root, top), top.digest)
        for child in descriptors_of(index.get("manifests"), top.digest):
            yield from _walk(root, child, depth=depth + 1, seen=seen)
    elif top.media_type == MANIFEST_TYPE:
        for blob in blobs_of(read_document(read_blob(root, top), top.digest), top.digest):
            if blob.digest not in seen:
                seen.add(blob.digest)
                compare_blob(root, blob)
                yield blob
    else:
        raise LayoutError(f"{top.digest}: {top.media_type!r:.80} is no OCI manifest or index")
    yield top


def blobs_of(manifest: Mapping[str, Any], what: str) -> list[Descriptor]:
    """Config and layers of a manifest."""
    layers = descriptors_of(manifest.get("layers"), what)
    return [*descriptors_of([manifest.get("config")], what), *layers]


def read_blob(root: Path, descriptor: Descriptor) -> bytes:
    """A document among the blobs, compared with its digest.

    Raises:
        LayoutError: it is missing, larger than documents are, or another.
    """
    if descriptor.size_bytes > DOCUMENT_BYTES_MAX:
        raise LayoutError(f"{descriptor.digest}: more than {DOCUMENT_BYTES_MAX} bytes")
    data = read_bounded(blob_path(root, descriptor.digest))
    found = describe(data, descriptor.media_type)
    if (found.digest, found.size_bytes) != (descriptor.digest, descriptor.size_bytes):
        raise LayoutError(_differs(descriptor, found.size_bytes))
    return data


def compare_blob(root: Path, descriptor: Descriptor) -> None:
    """Compare a blob of any size with its digest.

    Raises:
        LayoutError: it is missing or another.
    """
    path = blob_path(root, descriptor.digest)
    size_bytes = _file_size(path)
    if size_bytes != descriptor.size_bytes or digest_of(path) != descriptor.digest:
        raise LayoutError(_differs(descriptor, size_bytes))


def _differs(descriptor: Descriptor, size_bytes: int) -> str:
    return f"{descriptor.digest}: its bytes are others ({size_bytes} of {descriptor.size_bytes})"


def digest_of(path: Path) -> str:
    """The digest of a file, without reading it into memory."""
    with path.open("rb") as data:
        return f"sha256:{hashlib.file_digest(data, 'sha256').hexdigest()}"


def _file_size(path: Path) -> int:
    if path.is_symlink() or not path.is_file():
        raise LayoutError(f"{path.name}: no such file in the layout")
    return path.stat().st_size


def read_bounded(path: Path) -> bytes:
    """A small file, never through a link.

    Raises:
        LayoutError: it is missing or larger than documents are.
    """
    if _file_size(path) > DOCUMENT_BYTES_MAX:
        raise LayoutError(f"{path.name}: more than {DOCUMENT_BYTES_MAX} bytes")
    return path.read_bytes()


def read_document(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        LayoutError: it is something else, or nested beyond reading.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{what}: no JSON that can be read") from error
    if not isinstance(document, dict):
        raise LayoutError(f"{what}: expected a JSON object")
    return document


def descriptors_of(listed: object, what: str) -> list[Descriptor]:
    """Descriptors as a document has them.

    Raises:
        LayoutError: not a list of descriptors, or too many.
    """
    if not isinstance(listed, list) or len(listed) > DESCRIPTORS_MAX:
        raise LayoutError(f"{what}: expected a list of at most {DESCRIPTORS_MAX} descriptors")
    return [_parse_descriptor(one, what) for one in listed]


def _parse_descriptor(said: object, what: str) -> Descriptor:
    if not isinstance(said, dict):
        raise LayoutError(f"{what}: expected a descriptor, got {said!r:.80}")
    size, media_type = said.get("size"), said.get("mediaType")
    if type(size) is not int or size < 0 or not isinstance(media_type, str):
        raise LayoutError(f"{what}: a descriptor without size or mediaType: {said!r:.160}")
    digest = str(said.get("digest"))
    blob_path(Path(), digest)
    annotations = said.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(
        isinstance(one, str) for one in annotations.values()
    ):
        raise LayoutError(f"{what}: annotations of {digest} are no strings")
    return Descriptor(
        media_type=media_type, digest=digest, size_bytes=size, annotations=annotations
    )
