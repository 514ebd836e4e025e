"""The folder ``operator/`` must never shadow the standard library's module."""

import operator
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_operator_is_the_standard_library():
    assert operator.__file__ is not None
    assert operator.__file__.startswith(sysconfig.get_path("stdlib"))


def test_python_started_in_the_repository_still_has_its_operator():
    done = subprocess.run(
        [sys.executable, "-m", "json.tool"], cwd=ROOT, input="{}", text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_the_folder_has_no_init_and_no_tests():
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not list((ROOT / "operator").rglob("test_*.py"))
    assert not list((ROOT / "operator").rglob("conftest.py"))
