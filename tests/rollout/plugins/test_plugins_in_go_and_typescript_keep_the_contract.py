"""The examples in other languages: built with their own tools as their build.sh says, and held to the contract."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.plugins.sidecar.conformance.running import check_plugin

pytestmark = [pytest.mark.process, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "plugins"
BUILT = {"go-reward": "go", "typescript-environment": "npm"}


@pytest.mark.parametrize("name", BUILT)
def test_an_example_is_built_and_keeps_the_contract(name, tmp_path, monkeypatch):
    if shutil.which(BUILT[name]) is None:
        pytest.skip(f"{BUILT[name]} is not installed")
    folder = tmp_path / name
    made = shutil.ignore_patterns("bin", "contract", "plugin", "dist", "node_modules")
    shutil.copytree(EXAMPLES / name, folder, ignore=made)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    subprocess.run(["./build.sh"], cwd=folder, check=True, timeout=600)

    assert [one for one in check_plugin(folder, {}) if not one.has_passed] == []
