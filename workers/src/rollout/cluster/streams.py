"""What comes from a pod as it comes: lines of a log, and the outputs of a command. Pure but for reading the stream it is given."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollout.errors import KubeError

OUTPUT_BYTES_MAX = 64 << 20
"""What a command in a pod may print."""
EXEC_SECONDS = 300
HANDSHAKE = re.compile(r"Handshake status (\d{3}) ([^-]*)")
BETWEEN = "-+-+-"
"""What the websocket's library writes between a refusal's status, headers and body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command in a container came to."""

    code: int
    stdout: str
    stderr: str


def handshake_refusal(reason: str) -> tuple[int, str] | None:
    """Status and words of a refused stream, which the client reports as text; None for anything else."""
    found = HANDSHAKE.search(reason)
    if found is None:
        return None
    body = reason.rpartition(BETWEEN)[2].strip()
    try:
        text = ast.literal_eval(body).decode() if body.startswith("b") else body
        return int(found[1]), str(json.loads(text)["message"])
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError):
        return int(found[1]), f"{found[1]} {found[2]}".strip()


def whole_lines(answer: Any) -> Iterator[str]:
    """Whole lines of a streamed body."""
    rest = b""
    try:
        for chunk in answer.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    finally:
        answer.release_conn()
    if rest:
        yield rest.decode(errors="replace")


def drain(channel: Any, pod: str) -> ExecResult:
    """Read both outputs until the command has ended."""
    outputs = ("stdout", "stderr")
    taken: dict[str, list[str]] = {name: [] for name in outputs}
    size = idle_seconds = 0
    while channel.is_open():
        channel.update(timeout=1)
        piece_size = _take(channel, taken)
        size += piece_size
        idle_seconds = 0 if piece_size else idle_seconds + 1
        if size > OUTPUT_BYTES_MAX or idle_seconds > EXEC_SECONDS:
            channel.close()
            raise KubeError(
                f"a command in pod/{pod} printed more than {OUTPUT_BYTES_MAX} bytes, or nothing for {EXEC_SECONDS} s"
            )
    _take(channel, taken)
    stdout, stderr = ("".join(taken[name]) for name in outputs)
    return ExecResult(code=channel.returncode, stdout=stdout, stderr=stderr)


def _take(channel: Any, taken: Mapping[str, list[str]]) -> int:
    """Move what has arrived; how many characters that was."""
    size = 0
    for name, read, peek in (
        ("stdout", channel.read_stdout, channel.peek_stdout),
        ("stderr", channel.read_stderr, channel.peek_stderr),
    ):
        if peek():
            taken[name].append(read())
            size += len(taken[name][-1])
    return size
