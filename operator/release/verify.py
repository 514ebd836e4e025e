"""Reads a release as if a stranger had written it, and names everything that differs.

The key is the reader's own: the one that lies in the release proves nothing. What the key's owner signed is the list of
digests, so that no part can be taken from another release; behind it each artifact is held to its own signature, version
and SBOM, as a registry's clients will see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from release import oci, signatures, sums
from release.contents import (
    CONTENTS,
    PUBLIC_KEY,
    SBOMS,
    SUMS,
    SUMS_SIGNATURE,
    WHEELS,
    Artifact,
    Contents,
    layout_of,
    parse_contents,
    sbom_tag,
)
from release.errors import LayoutError, ReleaseError
from release.parts import archives, charts, sbom, wheels


def find_differences(folder: Path, key: signatures.PublicKey, version: str) -> list[str]:
    """All that is wrong with a release; empty when it is the one of this version, signed by this key."""
    try:
        held = sums.read_folder(folder)
        data = oci.read_bounded(folder / SUMS)
        signature = oci.read_bounded(folder / SUMS_SIGNATURE)
        changed = sums.compare(sums.parse(data), held)
    except LayoutError as error:
        return [str(error)]
    if not signatures.holds(key, data, signature.decode("ascii", "replace").strip()):
        return [f"{SUMS}: {_whose(folder, key)}", *changed]
    return changed or list(_find_inside(folder, key, version))


def _whose(folder: Path, key: signatures.PublicKey) -> str:
    """Why a signature does not hold, as far as the release itself says."""
    try:
        said = oci.read_bounded(folder / PUBLIC_KEY)
    except LayoutError:
        return "not what your key signed"
    if said != signatures.public_pem(key):
        return f"signed by another key (the release says {PUBLIC_KEY}, which is not yours)"
    return "not what your key signed"


def _find_inside(folder: Path, key: signatures.PublicKey, version: str) -> Iterator[str]:
    try:
        contents = read_contents(folder)
    except LayoutError as error:
        yield str(error)
        return
    if contents.version != version:
        yield f"{CONTENTS}: version {contents.version}, expected {version}"
    yield from _wheels(folder, contents)
    yield from _sboms(folder)
    for one in contents.artifacts:
        try:
            found = list(_artifact(folder, contents, one, key))
        except (LayoutError, ValueError) as error:
            found = [str(error)]
        yield from (f"{one.repository}: {wrong}" for wrong in found)


def read_contents(folder: Path) -> Contents:
    """What the release says it holds.

    Raises:
        LayoutError: nothing that can be read.
    """
    return parse_contents(oci.read_bounded(folder / CONTENTS))


def _wheels(folder: Path, contents: Contents) -> Iterator[str]:
    there = sorted(one.name for one in (folder / WHEELS).glob("*"))
    if there != sorted(contents.wheels):
        yield f"{WHEELS}: {', '.join(there)}; {CONTENTS} says {', '.join(contents.wheels)}"
    for name in there:
        try:
            found = wheels.read_version(folder / WHEELS / name)
        except ReleaseError as error:
            yield str(error)
            continue
        if found != contents.version:
            yield f"{WHEELS}/{name}: version {found or 'unknown'}, expected {contents.version}"


def _sboms(folder: Path) -> Iterator[str]:
    for path in sorted((folder / SBOMS).glob("*")):
        try:
            wrong = sbom.find_wrong(oci.read_bounded(path).decode())
        except (LayoutError, UnicodeDecodeError) as error:
            wrong = str(error)
        if wrong:
            yield f"{SBOMS}/{path.name}: {wrong}"


def _artifact(
    folder: Path, contents: Contents, one: Artifact, key: signatures.PublicKey
) -> Iterator[str]:
    root = layout_of(folder, one.repository)
    tags = oci.read_tags(root)
    artifact = tags.get(contents.version)
    if artifact is None or artifact.digest != one.digest:
        found = "missing" if artifact is None else artifact.digest
        yield f"tag {contents.version} is {found}, {CONTENTS} says {one.digest}"
        return
    held = tags.get(sbom_tag(one.digest))
    if held is None or held.digest != one.sbom:
        yield f"the SBOM of {one.digest} is not the one that {CONTENTS} says"
        return
    for top in tags.values():
        list(oci.walk(root, top))
    yield from _extra(tags, contents.version, one)
    yield from _version(root, artifact, contents, one)
    yield from _sbom(root, held, artifact)
    for signed in (artifact, held):
        wrong = signatures.find_wrong_signature(
            root, tags, signed, one.repository, contents.claims(), key
        )
        if wrong:
            yield f"{signed.digest}: {wrong}"


def _extra(tags: dict[str, oci.Descriptor], version: str, one: Artifact) -> Iterator[str]:
    known = {version, sbom_tag(one.digest), *map(signatures.signature_tag, (one.digest, one.sbom))}
    for tag in sorted(tags.keys() - known):
        yield f"tag {tag!r:.120} is none of a release"


def _version(
    root: Path, artifact: oci.Descriptor, contents: Contents, one: Artifact
) -> Iterator[str]:
    if one.kind == "image":
        labels = archives.labels_of(contents.version, contents.commit)
        yield from archives.find_wrong_labels(root, artifact, labels)
        return
    manifest = oci.read_document(oci.read_blob(root, artifact), artifact.digest)
    yield from charts.find_wrong_versions(root, manifest, contents.version)


def _sbom(root: Path, held: oci.Descriptor, artifact: oci.Descriptor) -> Iterator[str]:
    manifest = oci.read_document(oci.read_blob(root, held), held.digest)
    (subject,) = oci.descriptors_of([manifest.get("subject")], held.digest)
    if subject.digest != artifact.digest:
        yield f"{held.digest}: an SBOM of {subject.digest}, not of {artifact.digest}"
    for document in oci.descriptors_of(manifest.get("layers"), held.digest):
        if wrong := sbom.find_wrong(oci.read_blob(root, document).decode()):
            yield f"{document.digest}: {wrong}"
