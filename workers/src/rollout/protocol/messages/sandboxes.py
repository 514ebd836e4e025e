"""What actors ask of the broker of sandbox pods. A claim that is repeated gets the same pod, so that a lost answer loses none."""

from __future__ import annotations

from rollout.protocol.messages.base import WireMessage


class ClaimSandbox(WireMessage, frozen=True, kw_only=True):
    """Ask for a pod, for one episode."""

    claim: str
    """Names this request; repeated, it gets the same pod."""
    wait_seconds: float = 0.0
    """How long the answer may wait for one."""


class SandboxClaimed(WireMessage, frozen=True, kw_only=True):
    """A pod, or why there is none yet."""

    name: str = ""
    """Of the pod; empty: none is ready."""
    address: str = ""
    """Its IP."""
    port: int = 0
    """Where its service listens."""
    secret: bytes = b""
    """What the pod proves its identity by."""
    key: bytes = b""
    """What it lets its caller in by."""
    reason: str = ""
    """Why none is ready."""


class ReleaseSandbox(WireMessage, frozen=True, kw_only=True):
    """A pod is not needed any more."""

    name: str = ""
    """Of the pod."""
    claim: str = ""
    """Instead of ``name``: that request is withdrawn, whatever it was given."""
    lost: bool = False
    """The pod ended by itself, and what is known of that is waited for."""
    wait_seconds: float = 0.0
    """How long the answer may wait for it."""


class SandboxReleased(WireMessage, frozen=True, kw_only=True):
    """What is known of a pod's end."""

    past_memory: bool = False
    """The kernel had ended it because what ran in it used more memory than it may."""
