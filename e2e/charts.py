"""Renders and checks the charts with Helm."""

import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

import yamls
from cluster import build, pins
from cluster.errors import ClusterError
from cluster.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "rollout"
CRDS_CHART = REPOSITORY / "charts" / "rollout-crds"
NAMESPACE = "rollout-system"
SECONDS_MAX = 300.0
RENDERED_MAX = 256
"""Texts that are kept, of up to half a megabyte."""


def helm(*arguments: str, binary: str = "helm") -> subprocess.CompletedProcess[str]:
    """Run Helm with folders of its own; returns how it ended, whatever that was."""
    build.ensure((binary,))
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [str(build.path(binary)), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )


def render(
    chart: Path = CHART,
    values: dict[str, Any] | None = None,
    files: tuple[Path, ...] = (),
    served: tuple[str, ...] = (),
    binary: str = "helm",
) -> str:
    """`helm template` of a chart as the release `rollout`, for a cluster that serves these kinds beside its own.

    What was rendered once is not rendered again: nothing but these goes in, and a test that compares gives two of them.

    Raises:
        ClusterError: Helm refused; its words are in the message.
    """
    return _template(chart, yaml.safe_dump(values or {}), files, served, binary)


@lru_cache(maxsize=RENDERED_MAX)
def _template(
    chart: Path, values: str, files: tuple[Path, ...], served: tuple[str, ...], binary: str
) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as given:
        given.write(values)
        given.flush()
        named = [part for file in (*map(str, files), given.name) for part in ("--values", file)]
        where = ("--namespace", NAMESPACE, "--kube-version", pins.KUBERNETES)
        kinds = [part for kind in served for part in ("--api-versions", kind)]
        done = helm("template", "rollout", str(chart), *where, *named, *kinds, binary=binary)
    if done.returncode:
        raise ClusterError(done.stderr)
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """The documents of a rendered chart, tests (hooks) left out."""
    found = [one for one in yamls.read_all(text) if one]
    return [one for one in found if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
