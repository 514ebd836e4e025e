"""A tiny base model, and services in the test's loop."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from rollout.learner.model.numerics import apply_numerics
from rollout.service.server import note_bases
from rollout.service.training.bases import TrainingBase, load_base

sys.path.insert(0, str(Path(__file__).parent))

from reading_kit import small_loop
from service_kit import TINY, running_services


@pytest.fixture(autouse=True)
def exact_service_numerics() -> None:
    apply_numerics(threads=1, exact=True)


@pytest.fixture(scope="module")
def no_telemetry() -> Iterator[None]:
    """Of the client that comes from the index, for a file that has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TELEMETRY", "0")
        yield


@pytest.fixture(scope="session")
def tiny_base() -> TrainingBase:
    return load_base(TINY)


@pytest.fixture
async def service(tiny_base, tmp_path) -> AsyncIterator[Callable]:
    """Start a service on a folder: ``await service()``; again on the same folder when the first has ended."""
    async with running_services(tiny_base, tmp_path) as start:
        yield start


@pytest.fixture
async def served(service, tmp_path, tiny_base):
    running = await service(tmp_path / "service")
    note_bases(running.book, (TINY,), {"tiny": tiny_base})
    client = running.client()
    await small_loop(client)
    yield running, client, ("--service", str(tmp_path / "service"))
