"""What a release holds, as ``release.json`` says it, and where in its folder it lies. Pure but for reading one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from release import oci
from release.errors import LayoutError
from release.versions import VERSION

CONTENTS, SUMS, SUMS_SIGNATURE, PUBLIC_KEY = (
    "release.json",
    "SHA256SUMS",
    "SHA256SUMS.sig",
    "cosign.pub",
)
WHEELS, SBOMS, LAYOUTS = "wheels", "sboms", "oci"
Kind = Literal["chart", "image"]
KINDS: Mapping[str, Kind] = {
    "charts/rollout": "chart",
    "charts/rollout-crds": "chart",
    "rollout-operator": "image",
    "rollout-worker": "image",
}
"""What each repository holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A chart or an image of the release."""

    repository: str
    """Below the registry's host and prefix; the name of its layout, too."""
    kind: Kind
    digest: str
    """Of its manifest or index."""
    sbom: str
    """Digest of the manifest that holds its SBOM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """One release."""

    version: str
    commit: str
    """All 40 digits."""
    created: str
    """When the commit was made."""
    artifacts: Sequence[Artifact]
    wheels: Sequence[str]
    """Names of files."""
    made_with: Mapping[str, str]
    """What the bytes depend on beside the commit: versions of Python, setuptools and zlib."""

    def to_bytes(self) -> bytes:
        """As the file has it."""
        return oci.to_bytes(asdict(self)) + b"\n"

    def claims(self) -> dict[str, str]:
        """What each signature of an artifact says beside its digest."""
        return {"version": self.version, "commit": self.commit}


def layout_of(folder: Path, repository: str) -> Path:
    """The layout of a repository."""
    return folder / LAYOUTS / repository


def sbom_tag(digest: str) -> str:
    """Where `cosign download sbom` looks for the SBOM of a manifest."""
    return f"{digest.replace(':', '-')}.sbom"


def parse_contents(data: bytes) -> Contents:
    """What a release says it holds.

    Raises:
        LayoutError: it is no such file.
    """
    said = oci.read_document(data, CONTENTS)
    try:
        contents = Contents(
            version=_text(said, "version"),
            commit=_text(said, "commit"),
            created=_text(said, "created"),
            artifacts=[_parse_artifact(one) for one in said["artifacts"]],
            wheels=[str(one) for one in said["wheels"]],
            made_with={str(key): str(value) for key, value in said["made_with"].items()},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LayoutError(f"{CONTENTS}: not as a release has it: {error}") from error
    _check(contents)
    return contents


def _check(contents: Contents) -> None:
    if not VERSION.fullmatch(contents.version):
        raise LayoutError(f"{CONTENTS}: version {contents.version!r:.80} is none")
    named = [one.repository for one in contents.artifacts]
    charts = {one for one, kind in KINDS.items() if kind == "chart"}
    if len(set(named)) != len(named) or not charts <= {*named}:
        raise LayoutError(f"{CONTENTS}: expected each chart once, got {named}")
    if any("/" in one or not one.endswith(".whl") for one in contents.wheels):
        raise LayoutError(f"{CONTENTS}: wheels are names of files: {contents.wheels!r:.200}")


def _parse_artifact(said: Mapping[str, Any]) -> Artifact:
    repository, kind = _text(said, "repository"), _text(said, "kind")
    expected = KINDS.get(repository)
    if expected is None or kind != expected:
        raise ValueError(f"{repository!r:.80} of kind {kind!r:.80} is no artifact of ours")
    digest, sbom = _text(said, "digest"), _text(said, "sbom")
    oci.blob_path(Path(), digest)
    oci.blob_path(Path(), sbom)
    return Artifact(repository=repository, kind=expected, digest=digest, sbom=sbom)


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value
