"""A version stands in distributions, charts and rendered manifests: a place that says another is named before anything is made."""

from pathlib import Path

import pytest
import release_kit

from release import generated, versions
from release.errors import ReleaseError

ROOT = Path(__file__).parents[3]
PLACES = {
    "crds/pyproject.toml": 'version = "0.3.1"',
    "workers/pyproject.toml": "rollout-api==0.3.1",
    "charts/rollout-crds/Chart.yaml": 'appVersion: "0.3.1"',
    "charts/rollout/Chart.yaml": "version: 0.3.1",
    "manifests/base/a.yaml": "helm.sh/chart: rollout-0.3.1",
    "CHANGELOG.md": "## 0.3.1",
}


@pytest.fixture
def tree(tmp_path):
    for path, text in release_kit.repository_files("0.3.1").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_a_repository_of_one_version_has_no_differences(tree):
    assert versions.find_differences(tree, "0.3.1") == []


@pytest.mark.parametrize("path", PLACES)
def test_one_place_that_says_another_version_is_named(tree, path):
    said = PLACES[path]
    text = (tree / path).read_text()
    assert said in text
    (tree / path).write_text(text.replace(said, said.replace("0.3.1", "0.3.0"), 1))

    (found,) = versions.find_differences(tree, "0.3.1")

    assert found.startswith(f"{path}:")
    assert "0.3.1" in found


def test_this_repository_says_one_version_but_for_its_changelog_until_a_release():
    version = versions.tomllib.loads((ROOT / "crds/pyproject.toml").read_text())["project"][
        "version"
    ]
    found = versions.find_differences(ROOT, version)
    assert [one for one in found if not one.startswith("CHANGELOG.md")] == []


def test_every_place_of_this_repository_is_looked_at():
    found = versions.find_differences(ROOT, "99.0.0")
    looked_at = {one.partition(":")[0] for one in found}
    assert {
        *(f"{name}/pyproject.toml" for name in versions.DISTRIBUTIONS),
        *(f"charts/{name}/Chart.yaml" for name in versions.CHARTS),
        "manifests/base/deployments.yaml",
        "CHANGELOG.md",
    } <= looked_at


def test_charts_and_definitions_are_what_the_models_make_at_that_version():
    version = versions.tomllib.loads((ROOT / "crds/pyproject.toml").read_text())["project"][
        "version"
    ]
    assert generated.find_differences(ROOT, version) == []
    other = generated.find_differences(ROOT, "99.0.0")
    assert "charts/rollout/Chart.yaml: not as `make generate` writes it" in other


@pytest.mark.parametrize(
    "text", ["1.0", "v1.0.0", "1.0.0-rc.1", "1.0.0rc1", "01.0.0", "1.0.0\n", ""]
)
def test_a_version_that_semver_and_python_read_differently_is_refused(text):
    with pytest.raises(ReleaseError, match=r"expected x\.y\.z"):
        versions.parse_version(text)
