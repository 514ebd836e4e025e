"""The seam of sandboxes: what is asked of one, what it answers, and what bounds it.

A sandbox is made for one episode, runs its commands one after the other, and is thrown away. What a command did
is the policy's doing and comes back as data (``CommandResult``); that the sandbox itself failed is an
InfrastructureError, which is never scored. No backend runs anything without its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rollout.errors import SpecError

Cause = Literal["exit", "signal", "time", "memory", "files", "stopped"]
"""How a command ended: by itself, by a signal, because it was past its time, memory, or number of files, or told to."""


ARGUMENTS_BYTES_MAX = 96 << 10
"""Linux takes 128 KiB for one argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one sandbox may use. Sizes in bytes.

    ``memory_bytes`` holds for all processes and temporary files together, ``disk_bytes`` for each of the two folders
    that can be written, ``output_bytes`` for what is kept of each stream of a command (the rest is counted),
    ``seconds`` for one command, ``lifetime_seconds`` for the sandbox, ``commands`` for how many it runs.
    """

    memory_bytes: int = 512 << 20
    disk_bytes: int = 64 << 20
    files: int = 16_384
    processes: int = 48
    open_files: int = 128
    output_bytes: int = 32 << 10
    input_bytes: int = 1 << 20
    seconds: float = 10.0
    lifetime_seconds: float = 3600.0
    commands: int = 256

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What a command wrote: its first and last bytes, and how many there were."""

    head: bytes = b""
    tail: bytes = b""
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What became of one command. ``code`` is its exit code, negative for a signal.

    ``num_left``: processes that it had left running and that were ended.
    """

    cause: Cause
    code: int
    stdout: Stream
    stderr: Stream
    num_left: int = 0


class Sandbox(Protocol):
    """One episode's sandbox. Single use."""

    async def run(
        self, argv: tuple[str, ...], *, stdin: bytes = b"", seconds: float | None = None
    ) -> CommandResult:
        """Run a command in ``/box`` and wait for it; what it leaves running is ended.

        ``seconds`` shortens the limit's. Raises InfrastructureError where the sandbox is lost, and ValueError for a
        command or an input that is larger than a sandbox takes.
        """
        ...

    async def close(self) -> None:
        """End everything in it; idempotent."""
        ...


class SandboxMaker(Protocol):
    """Makes the sandboxes of a process."""

    async def open(self, limits: SandboxLimits) -> Sandbox:
        """A fresh sandbox. Raises InfrastructureError where it does not come up."""
        ...


def check_command(argv: Sequence[str], stdin: bytes, limits: SandboxLimits) -> None:
    """Raise ValueError for a command or an input that is larger than a sandbox takes."""
    if len(stdin) > limits.input_bytes:
        raise ValueError(
            f"the input has {len(stdin)} bytes, a command takes {limits.input_bytes} at most"
        )
    size = max(len(one.encode("utf-8", "surrogatepass")) for one in argv)
    if size > ARGUMENTS_BYTES_MAX or any("\0" in one for one in argv):
        raise ValueError(
            f"a command takes arguments of {ARGUMENTS_BYTES_MAX} bytes at most, without NUL"
            f" characters; this has {size} bytes"
        )


class NoSandbox(SpecError):  # noqa: N818 - the reason shown to people
    """This machine cannot keep in what the policy writes: nothing of it is run."""
