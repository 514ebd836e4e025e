"""The minor version of the ``tinker`` client before the one in the environment, as it comes from the package index: the same tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pinned_packages import SDK_BEFORE, installed

pytestmark = [pytest.mark.slow, pytest.mark.process]
TESTS = Path(__file__).with_name("test_the_unmodified_client_trains_and_samples.py")
SECONDS = 540


def test_the_client_before_trains_and_samples_too():
    folder, why = installed(SDK_BEFORE)
    if folder is None:
        pytest.skip(why)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path}
    asked = [sys.executable, "-c", "import tinker; print(tinker.__version__)"]
    version = subprocess.run(asked, capture_output=True, text=True, env=env).stdout.strip()
    assert f"tinker=={version}" in SDK_BEFORE
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        str(TESTS),
    ]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
