"""A version stands in many files: all of them say the one that is released, or nothing is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from release.errors import ReleaseError

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
DISTRIBUTIONS = ("crds", "operator", "workers")
CHARTS = ("rollout", "rollout-crds")
CONTRACT = "rollout-api"
"""The distribution that the two others pin to their own version."""
WRITTEN = re.compile(
    r"(?P<what>helm\.sh/chart: rollout(?:-crds)?-|app\.kubernetes\.io/version: \"?"
    r"|registry\.invalid/rollout-[a-z]+:)(?P<version>[0-9][^\s\"']*)"
)
"""Where manifests that were rendered from the charts say a version."""


def parse_version(text: str) -> str:
    """A version that SemVer and PEP 440 read alike.

    Raises:
        ReleaseError: it is none.
    """
    if not VERSION.fullmatch(text):
        raise ReleaseError(f"version {text!r}: expected x.y.z, as in 0.2.0")
    return text


def find_differences(tree: Path, version: str) -> list[str]:
    """Each place of the repository that says another version, with what it says."""
    places = (*_distributions(tree), *_charts(tree), *_manifests(tree))
    wrong = [f"{place}: {said}, expected {version}" for place, said in places if said != version]
    return [*wrong, *_changelog(tree, version)]


def _distributions(tree: Path) -> Iterator[tuple[str, Any]]:
    for name in DISTRIBUTIONS:
        path = tree / name / "pyproject.toml"
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        yield f"{name}/pyproject.toml: version", project.get("version")
        if project["name"] != CONTRACT:
            pins = [one for one in project["dependencies"] if one.startswith(f"{CONTRACT}==")]
            yield (
                f"{name}/pyproject.toml: dependency {CONTRACT}",
                pins[0].partition("==")[2] if len(pins) == 1 else pins,
            )


def _charts(tree: Path) -> Iterator[tuple[str, Any]]:
    for name in CHARTS:
        chart = yaml.safe_load((tree / "charts" / name / "Chart.yaml").read_text(encoding="utf-8"))
        for field in ("version", "appVersion"):
            yield f"charts/{name}/Chart.yaml: {field}", chart.get(field)


def _manifests(tree: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((tree / "manifests").rglob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if found := WRITTEN.search(line):
                what = found["what"].strip(' :"-')
                yield f"{path.relative_to(tree)}:{number}: {what}", found["version"]


def _changelog(tree: Path, version: str) -> list[str]:
    text = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    if re.search(rf"^## {re.escape(version)}\b", text, re.MULTILINE):
        return []
    return [f"CHANGELOG.md: no heading `## {version}`: say what is new in it"]
