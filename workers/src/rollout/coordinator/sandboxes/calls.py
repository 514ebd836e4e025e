"""What actors ask of the broker of sandbox pods."""

from __future__ import annotations

from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext, SandboxPods
from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope


@answers(routes.CLAIM_SANDBOX)
async def claim(run: RunContext, sender: Envelope, ask: m.ClaimSandbox) -> m.SandboxClaimed:
    """A pod for one episode."""
    del sender
    return await _broker(run).claim(run, ask)


@answers(routes.RELEASE_SANDBOX)
async def release(run: RunContext, sender: Envelope, ask: m.ReleaseSandbox) -> m.SandboxReleased:
    """The end of one."""
    del sender
    return await _broker(run).release(run, ask)


def _broker(run: RunContext) -> SandboxPods:
    if run.sandboxes is None:
        raise CoordinatorError("this run was started without sandbox pods: nothing of it needs one")
    return run.sandboxes
