"""What actors ask of the broker of sandbox pods. A claim that is repeated gets the same pod, so that a lost answer loses none."""

from __future__ import annotations

from rollout.protocol.messages.base import WireMessage


class ClaimSandbox(WireMessage, frozen=True, kw_only=True):
    """Ask for a pod, for one episode. ``claim`` is this wish's own; waits up to ``wait_seconds``."""

    claim: str
    wait_seconds: float = 0.0


class SandboxClaimed(WireMessage, frozen=True, kw_only=True):
    """``name`` empty: none is ready yet, and ``reason`` says why.

    ``secret`` is what the pod proves to be the one by, ``key`` what it lets its caller in by.
    """

    name: str = ""
    address: str = ""
    port: int = 0
    secret: bytes = b""
    key: bytes = b""
    reason: str = ""


class ReleaseSandbox(WireMessage, frozen=True, kw_only=True):
    """A pod is not needed any more. ``lost``: it ended by itself, and what is known of that is waited for.

    ``claim`` instead of ``name``: a wish is not had any more, whatever it was given.
    """

    name: str = ""
    claim: str = ""
    lost: bool = False
    wait_seconds: float = 0.0


class SandboxReleased(WireMessage, frozen=True, kw_only=True):
    """``past_memory``: the kernel had ended it because what ran in it used more memory than it may."""

    past_memory: bool = False
