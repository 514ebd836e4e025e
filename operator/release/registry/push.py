"""Pushes a verified release: bytes first, then manifests, signatures and SBOMs, and the version's tag last.

So nobody finds a version that is not whole and signed, and a push that was cut is gone on with by the same command. A
version that the registry has with another digest is not overwritten, and nothing is sent before all of them were asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from release import oci
from release.contents import Artifact, Contents, layout_of
from release.errors import RegistryError
from release.registry.client import Registry

SUBJECT = "oci-subject"
"""The header of registries that list by themselves what says something about a manifest."""


def push(folder: Path, contents: Contents, registry: Registry) -> Iterator[str]:
    """Push all artifacts, images before charts; a line for each once it is there.

    Raises:
        RegistryError: another release has this version there, or the registry does not take this one.
    """
    for one in contents.artifacts:
        found = _find_digest(registry, one.repository, contents.version)
        if found not in {None, one.digest}:
            raise RegistryError(
                f"{registry.host}/{registry.name(one.repository)}:{contents.version} is {found} there, "
                f"{one.digest} here: a version is not overwritten, release another"
            )
    for one in sorted(contents.artifacts, key=lambda one: one.kind, reverse=True):
        _push_artifact(layout_of(folder, one.repository), contents.version, one, registry)
        place = f"{registry.host}/{registry.name(one.repository)}"
        yield f"{place}:{contents.version}@{one.digest}"


def _push_artifact(root: Path, version: str, one: Artifact, registry: Registry) -> None:
    tags = oci.read_tags(root)
    top = tags.pop(version)
    _push_tree(root, top, one.repository, registry)
    for tag, beside in sorted(tags.items()):
        _push_tree(root, beside, one.repository, registry)
        _tag(root, beside, tag, one.repository, registry)
    _tag(root, top, version, one.repository, registry)


def _push_tree(root: Path, top: oci.Descriptor, repository: str, registry: Registry) -> None:
    for blob in oci.walk(root, top):
        if blob.media_type in {oci.MANIFEST_TYPE, oci.INDEX_TYPE}:
            _push_manifest(root, blob, repository, registry)
        elif not registry.has_blob(repository, blob):
            registry.put_blob(repository, oci.blob_path(root, blob.digest), blob)


def _push_manifest(root: Path, one: oci.Descriptor, repository: str, registry: Registry) -> None:
    data = oci.read_blob(root, one)
    headers = registry.put_manifest(repository, one.digest, data, one.media_type)
    manifest = oci.read_document(data, one.digest)
    if "subject" in manifest and SUBJECT not in headers:
        _list_referrer(one, manifest, repository, registry)


def _list_referrer(
    one: oci.Descriptor, manifest: Mapping[str, Any], repository: str, registry: Registry
) -> None:
    """Keep the list that a registry without the referrers API does not keep itself."""
    (subject,) = oci.descriptors_of([manifest["subject"]], one.digest)
    tag = subject.digest.replace(":", "-")
    data = registry.get_manifest(repository, tag)
    index = {"manifests": []} if data is None else oci.read_document(data, tag)
    listed = oci.descriptors_of(index.get("manifests"), tag)
    if any(other.digest == one.digest for other in listed):
        return
    entry = one.to_json() | {"artifactType": manifest["artifactType"]}
    entries = [*index["manifests"], entry]
    new = {"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": entries}
    registry.put_manifest(repository, tag, oci.to_bytes(new), oci.INDEX_TYPE)


def _tag(root: Path, one: oci.Descriptor, tag: str, repository: str, registry: Registry) -> None:
    """Name a manifest, and read what the name gives."""
    registry.put_manifest(repository, tag, oci.read_blob(root, one), one.media_type)
    found = _find_digest(registry, repository, tag)
    if found != one.digest:
        raise RegistryError(
            f"{registry.host}/{registry.name(repository)}:{tag} is {found} after it was pushed, "
            f"expected {one.digest}"
        )


def _find_digest(registry: Registry, repository: str, tag: str) -> str | None:
    data = registry.get_manifest(repository, tag)
    return None if data is None else oci.describe(data, "").digest
