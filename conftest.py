"""What the tests of every tier share: slow ones are told apart, and the order of the files may be drawn.

`ROLLOUT_TEST_ORDER=<seed>` shuffles the files, each of which stays whole: a test that leans on another file is found.
"""

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.append(
    str(Path(__file__).parent / "e2e")
)  # cluster.ports: one owner of ports for all tests

sys.path.append(str(Path(__file__).parent / "tests"))

import verdicts

ORDER = "ROLLOUT_TEST_ORDER"


def pytest_configure(config: pytest.Config) -> None:
    """A long tier goes on where it was cut."""
    verdicts.register(config)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Slow tests are told from quick ones in the JUnit file, for tests/timing.py."""
    if item.get_closest_marker("slow"):
        item.user_properties.append(("slow", "true"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in every worker, which pytest-xdist asks for."""
    if seed := os.environ.get(ORDER):
        files = sorted({str(item.path) for item in items})
        random.Random(seed).shuffle(files)
        place = {file: number for number, file in enumerate(files)}
        items.sort(key=lambda item: place[str(item.path)])
