"""Settings for all tests: hypothesis judges results, never the clock of a busy machine; what is slow is marked so."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "rollout", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("rollout")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Slow tests are told from quick ones in the JUnit file, for tests/timing.py."""
    if item.get_closest_marker("slow"):
        item.user_properties.append(("slow", "true"))
