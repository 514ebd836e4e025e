"""Which vLLM this plugin was written and tested against; anything else is refused at start."""

from __future__ import annotations

SUPPORTED = ((0, 32),)
"""Major and minor versions. Loading reaches into vLLM's reloading code, which has no stable interface."""


class UnsupportedVllmError(RuntimeError):
    """The server's vLLM is one that this plugin does not know."""


def require_supported(version: str) -> None:
    """Raise UnsupportedVllmError unless ``version`` (``0.32.1``, ``0.32.0+cpu``) is a supported one."""
    if any(version.startswith(f"{major}.{minor}.") for major, minor in SUPPORTED):
        return
    known = ", ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED)
    raise UnsupportedVllmError(
        f"this image has vLLM {version}; rollout's plugin supports {known}: "
        "use an image with one of these (actors.engine.vllm)"
    )
