"""What makes the sandboxes of this process: bubblewrap on one machine, in a cluster the pods that its run's broker makes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rollout.tools.sandbox.contract import SandboxLimits, SandboxMaker

if TYPE_CHECKING:
    from rollout.tools.sandbox.agent_sandbox import AgentSandbox
    from rollout.tools.sandbox.bubblewrap import Bubblewrap
    from rollout.tools.sandbox.pods.sandbox import PodSandboxes

_CHOSEN: list[PodSandboxes] = []


def use_sandboxes(maker: PodSandboxes) -> None:
    """From now on sandboxes of this process are made by ``maker``, instead of by bubblewrap."""
    _CHOSEN[:] = [maker]


def sandbox_maker() -> SandboxMaker:
    """The maker of this process. Raises NoSandbox."""
    return _CHOSEN[0] if _CHOSEN else bubblewrap()


def are_elsewhere() -> bool:
    """Whether sandboxes are no processes of this machine's, but are asked for by this process."""
    return bool(_CHOSEN)


def memory_of_pods() -> int | None:
    """What a program in a sandbox pod may use; None: sandboxes are of this machine."""
    return _CHOSEN[0].memory_bytes if _CHOSEN else None


def program_maker() -> Bubblewrap | PodSandboxes:
    """What makes sandboxes for programs that are spoken to. Raises NoSandbox."""
    return _CHOSEN[0] if _CHOSEN else bubblewrap()


async def open_for_agent(limits: SandboxLimits) -> AgentSandbox:
    """A fresh one for a program that owns its loop. Raises NoSandbox, InfrastructureError."""
    if _CHOSEN:
        from rollout.tools.sandbox.pods.agents import open_agent_pod

        return await open_agent_pod(_CHOSEN[0], limits)
    from rollout.tools.sandbox.agent_sandbox import open_agent_sandbox

    return await open_agent_sandbox(bubblewrap(), limits)


@cache
def bubblewrap() -> Bubblewrap:
    """That of this machine. Raises NoSandbox."""
    from rollout.tools.sandbox.bubblewrap import Bubblewrap

    return Bubblewrap()
