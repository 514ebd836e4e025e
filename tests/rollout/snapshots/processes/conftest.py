"""CRIU for tests that make real images, and a home for cells."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from process_kit import Programs

from cluster import criu as criu_of_tests
from cluster.errors import BuildError
from rollout.snapshots.processes.criu import find_criu


@pytest.fixture(scope="session")
def criu():
    """A CRIU that works here; elsewhere the test is skipped, and says why."""
    try:
        path = criu_of_tests.ensure()
    except BuildError as error:
        pytest.skip(f"CRIU cannot be had: {error}")
    support = find_criu({"PATH": os.environ["PATH"], "ROLLOUT_CRIU": str(path)}).support()
    if not support.is_there:
        pytest.skip(f"CRIU cannot work here: {support.reason}")
    return path


@pytest.fixture
def programs(criu, tmp_path):
    """Programs in cells of a home of their own; those that still run end with the test."""
    with Programs(criu, tmp_path) as made:
        yield made
