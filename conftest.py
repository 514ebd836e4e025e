"""What the tests of every tier share: slow ones are told apart, and the order of the files is drawn (tests/file_order.py)."""

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(
    str(Path(__file__).parent / "e2e")
)  # cluster.ports: one owner of ports for all tests

sys.path.append(str(Path(__file__).parent / "tests"))
sys.path.append(str(Path(__file__).parent / "operator"))  # the package release

import file_order
import verdicts

setting_up: list[str] = []
"""The fixture of the whole session that is being set up, while one is."""


def pytest_configure(config: pytest.Config) -> None:
    """A long tier goes on where it was cut."""
    verdicts.register(config)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Slow tests are told from quick ones in the JUnit file, for tests/timing.py."""
    if item.get_closest_marker("slow"):
        item.user_properties.append(("slow", "true"))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """What a session shares is told apart from the test that happened to ask first, for tests/timing.py."""
    is_outermost = fixturedef.scope == "session" and not setting_up
    if not is_outermost:
        return (yield)
    setting_up.append(fixturedef.argname)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        setting_up.pop()
        seconds = f"{time.perf_counter() - began:.3f}"
        request._pyfuncitem.user_properties.append(("shared", seconds))  # noqa: SLF001 - who asked has no public name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order that was drawn, where one was."""
    if seed := os.environ.get(file_order.SEED):
        file_order.sort_items(items, seed)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> file_order.ByShare | None:
    """For `--dist loadfile --no-loadscope-reorder`, as tests/run.sh has it."""
    return file_order.ByShare(config, log) if config.getvalue("dist") == "loadfile" else None
