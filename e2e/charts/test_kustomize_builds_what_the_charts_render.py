"""Kustomize's base and components are the chart, cut along its switches: whoever takes the same ones gets the same objects."""

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import kustomize
import pytest
import yaml
from kustomize import COMPONENTS, DEFAULT, FOLDER, Component, added_by, key_of, render_all

import yamls
from cluster import build

pytestmark = pytest.mark.control_plane

NAMED = {one.name: one for one in COMPONENTS}
COMBINATIONS = [
    (),
    DEFAULT,
    ("webhook-cert-manager", "admission-policy"),
    ("webhook", "service-monitor"),
    tuple(one.name for one in COMPONENTS if one.name != "webhook-cert-manager"),
]


PAIRS = [
    (one, other)
    for one, other in itertools.combinations(COMPONENTS, 2)
    if other.name != one.excludes and not one.beside and not other.beside
]


def build_folder(folder: Path) -> dict[Any, dict[str, Any]]:
    """What `kubectl kustomize` makes of a folder, without the namespace and the definitions."""
    command = [str(build.path("kubectl")), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    made = [one for one in yamls.read_all(done.stdout) if one]
    apart = {"Namespace", "CustomResourceDefinition"}
    assert {one["kind"] for one in made} >= apart
    assert sum(one["kind"] == "CustomResourceDefinition" for one in made) == len(CRDS)
    return {key_of(one): one for one in made if one["kind"] not in apart}


CRDS = sorted((FOLDER.parent / "crds" / "generated").glob("*.yaml"))


def test_the_files_are_what_the_chart_renders():
    """`PYTHONPATH=. python charts/kustomize.py` in e2e/ writes them."""
    assert kustomize.read_files() == kustomize.build_files()


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_components_together_are_the_chart_with_their_switches(tmp_path, names):
    body = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [relative(FOLDER / "base", tmp_path)],
        "components": [relative(FOLDER / "components" / name, tmp_path) for name in names],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(body))
    wanted = {key_of(one): one for one in render_all([NAMED[name] for name in names])}
    assert build_folder(tmp_path) == wanted


def relative(path: Path, start: Path) -> str:
    """Kustomize takes no absolute paths."""
    return os.path.relpath(path, start.resolve())


def test_the_default_is_the_chart_with_its_own_values():
    made = build_folder(FOLDER / "default")
    rendered = kustomize.charts.render(values={"runtime": {"create": False}})
    assert made == {key_of(one): one for one in kustomize.charts.objects(rendered)}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].name}+{pair[1].name}")
def test_no_switch_changes_what_another_one_made(pair: tuple[Component, Component]):
    apart = {key_of(one): one for part in pair for one in added_by(part)}
    base = {key_of(one): one for one in render_all()}
    assert {key_of(one): one for one in render_all(pair)} == base | apart
