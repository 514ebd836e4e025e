"""What makes the sandboxes of this process: bubblewrap on one machine, in a cluster the pods that its run's broker makes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rollout.tools.sandbox.contract import SandboxMaker

if TYPE_CHECKING:
    from rollout.tools.sandbox.bubblewrap import Bubblewrap

_CHOSEN: list[SandboxMaker] = []


def use_sandboxes(maker: SandboxMaker) -> None:
    """From now on sandboxes of this process are made by ``maker``, instead of by bubblewrap."""
    _CHOSEN[:] = [maker]


def sandbox_maker() -> SandboxMaker:
    """The maker of this process. Raises NoSandbox."""
    return _CHOSEN[0] if _CHOSEN else bubblewrap()


@cache
def bubblewrap() -> Bubblewrap:
    """That of this machine. Raises NoSandbox."""
    from rollout.tools.sandbox.bubblewrap import Bubblewrap

    return Bubblewrap()
