"""Gateways in the test's loop."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_kit import gateways


@pytest.fixture
async def gateway() -> AsyncIterator[Callable]:
    """Start a gateway over simulated engines: ``await gateway(m=("a", "b"))``, with settings as ``settings``."""
    async with gateways() as start:
        yield start
