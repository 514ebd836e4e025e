"""Whether this machine can keep in what the policy writes: one sandbox is made, runs a command, and is ended."""

from __future__ import annotations

import asyncio

from rollout.errors import InfrastructureError
from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.contract import NoSandbox, SandboxLimits

COMMAND = ("/bin/sh", "-c", "exit 0")


def require_sandbox() -> None:
    """Raise NoSandbox saying what is missing, or what a sandbox said that did not come up."""
    maker = Bubblewrap()
    try:
        asyncio.run(_try(maker))
    except InfrastructureError as error:
        raise NoSandbox(
            f"NoSandbox: what the policy writes cannot be kept in on this machine: {error};"
            " allow user namespaces to bubblewrap, or leave out the tools of environment.tools, the environment"
            " code, the reward code-tests and the suite humaneval that run it"
        ) from error


async def _try(maker: Bubblewrap) -> None:
    sandbox = await maker.open(SandboxLimits())
    try:
        result = await sandbox.run(COMMAND)
    finally:
        await sandbox.close()
    if (result.cause, result.code) != ("exit", 0):
        raise InfrastructureError(f"a first command ended by {result.cause} ({result.code})")
