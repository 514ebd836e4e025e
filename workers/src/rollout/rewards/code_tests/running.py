"""One program against its hidden tests, in a sandbox of its own that is thrown away.

What the program did is data. That a sandbox failed is an InfrastructureError, and never scored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.rewards.code_tests.tasks import PROGRAM_BYTES_MAX, CodeTask, Pair
from rollout.tools.sandbox.contract import CommandResult, Sandbox, SandboxLimits, SandboxMaker

PYTHON = ("/usr/bin/env", "python3")
START_SECONDS = 10.0
"""For Python and the tests to begin, beside what the cases may take."""
WHOLE_SECONDS = 30.0
"""For all statements of one task together, where one alone may not take longer."""
PRINTED_CHARACTERS_MAX = 200
MARKED = "SOURCE = {source!r}\nexec(SOURCE)\nmain()\n"

Became = Literal["passed", "failed", "error", "time"]


class CaseVerdict(msgspec.Struct, frozen=True):
    """What became of one case."""

    became: Became
    """``error``: it raised or did not begin; ``time``: it was ended."""
    why: str = ""
    """In few words; empty where it passed."""


class _Told(msgspec.Struct):
    number: str
    cases: tuple[CaseVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBounds:
    """What one program may use."""

    seconds: float = 6.0
    """Of one case."""
    memory_bytes: int = 512 << 20
    """Of the program with all that it starts."""

    def limits(self, num_cases: int) -> SandboxLimits:
        """The sandbox's own bounds."""
        whole = START_SECONDS + min(num_cases * self.seconds, max(self.seconds, WHOLE_SECONDS))
        return SandboxLimits(
            memory_bytes=self.memory_bytes,
            seconds=whole,
            lifetime_seconds=2 * whole,
            commands=num_cases + 1,
            output_bytes=256 << 10,
            input_bytes=256 << 20,
        )


async def run_tests(
    maker: SandboxMaker, task: CodeTask, reply: str, bounds: ProgramBounds
) -> tuple[CaseVerdict, ...]:
    """A verdict for each case, in order. Raises InfrastructureError where the sandbox is lost."""
    program = task.program_of(reply)
    if len(program.encode("utf-8", "surrogatepass")) > PROGRAM_BYTES_MAX or "\0" in program:
        why = f"a program has at most {PROGRAM_BYTES_MAX} bytes, none of them NUL"
        return tuple(CaseVerdict(became="error", why=why) for _ in task.cases)
    if not program.strip():
        return tuple(CaseVerdict(became="error", why="there is no program") for _ in task.cases)
    sandbox = await maker.open(bounds.limits(len(task.cases)))
    try:
        pairs = [one for one in task.cases if isinstance(one, Pair)]
        if pairs:
            return tuple([await _run_pair(sandbox, program, one, bounds) for one in pairs])
        return await _run_statements(sandbox, program, [str(one) for one in task.cases], bounds)
    finally:
        await sandbox.close()


async def _run_statements(
    sandbox: Sandbox, program: str, cases: Sequence[str], bounds: ProgramBounds
) -> tuple[CaseVerdict, ...]:
    source = resources.files("rollout.rewards.code_tests").joinpath("inside.py").read_text()
    number = os.urandom(16).hex()
    asked = {"program": program, "cases": cases, "seconds": bounds.seconds, "number": number}
    argv = (*PYTHON, "-I", "-S", "-c", MARKED.format(source=source))
    result = await sandbox.run(argv, stdin=json.dumps(asked).encode())
    told = _read(result, number)
    if told is None or len(told.cases) != len(cases):
        why = f"the tests did not come to their end ({result.cause}, exit code {result.code})"
        became: Became = "time" if result.cause == "time" else "error"
        return tuple(CaseVerdict(became=became, why=why) for _ in cases)
    return told.cases


def _read(result: CommandResult, number: str) -> _Told | None:
    """The verdict, where it bears the number."""
    try:
        told = msgspec.json.decode(result.stdout.head + result.stdout.tail, type=_Told)
    except UNREADABLE:
        return None
    return told if told.number == number and result.cause == "exit" else None


async def _run_pair(
    sandbox: Sandbox, program: str, pair: Pair, bounds: ProgramBounds
) -> CaseVerdict:
    """Compared line by line without white space at the ends of lines and of all."""
    argv = (*PYTHON, "-I", "-c", program)
    result = await sandbox.run(argv, stdin=pair.given.encode(), seconds=bounds.seconds)
    if result.cause != "exit" or result.code != 0:
        return _ended(result, bounds)
    stream = result.stdout
    if stream.num_bytes > len(stream.head) + len(stream.tail):
        return CaseVerdict(became="failed", why=f"it printed {stream.num_bytes} bytes")
    printed = (stream.head + stream.tail).decode(errors="replace")
    if _lines(printed) == _lines(pair.wanted):
        return CaseVerdict(became="passed")
    return CaseVerdict(became="failed", why=f"it printed {printed[:PRINTED_CHARACTERS_MAX]!r}")


def _ended(result: CommandResult, bounds: ProgramBounds) -> CaseVerdict:
    if result.cause == "time":
        return CaseVerdict(became="time", why=f"more than {bounds.seconds:g} s")
    words = (result.stderr.head + result.stderr.tail).decode(errors="replace").strip()
    last = words.splitlines()[-1][:200] if words else f"{result.cause}, exit code {result.code}"
    return CaseVerdict(became="error", why=last)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
