"""Helpers beside these tests, and those of the operator's, the gateway's and of tools, are modules."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "rollout_operator"),
    str(HERE.parent / "rollout_operator" / "endpoint"),
    str(HERE.parent / "rollout_operator" / "release"),
    str(HERE.parent / "rollout" / "inference"),
    str(HERE.parent / "rollout" / "tools"),
    str(HERE.parent / "rollout" / "coordinator"),
]


@pytest.fixture
async def gateway() -> AsyncIterator[Callable]:
    """Start a gateway over simulated engines: ``await gateway(m=("a", "b"))``, with settings as ``settings``."""
    from gateway_kit import gateways

    async with gateways() as start:
        yield start


@pytest.fixture
def sandbox_pods(sandbox_host, monkeypatch):
    """Sandboxes of this process are pods, each a process of this machine."""
    from boxed_pods import BoxedPods

    from rollout.tools.sandbox import chosen
    from rollout.tools.sandbox.pods.sandbox import PodSandboxes

    pods = BoxedPods(sandbox_host)
    monkeypatch.setattr(chosen, "_CHOSEN", [PodSandboxes(pods, 1 << 30)])
    yield pods
    pods.kill()
