"""The reward ``code-tests``: whether the program in a reply passes the hidden tests of its row."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.errors import InfrastructureError, UnscoredRows
from rollout.rewards.code_tests.running import CaseVerdict, ProgramBounds, run_tests
from rollout.rewards.code_tests.tasks import CodeTask, read_task
from rollout.tools.sandbox.chosen import sandbox_maker
from rollout.tools.sandbox.contract import SandboxMaker
from rollout.types import Completion, Message, Row

CREDITS = ("all", "share")
MEMORY_MIB_MIN, MEMORY_MIB_MAX = 32, 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """1 when the program in a reply passes all hidden tests of its row; else 0."""

    field: str = "tests"
    """Of the row, that holds the tests, where it is not one of HumanEval or MBPP."""
    credit: str = "all"
    """``share``: the share of the tests that passed, instead of all or nothing."""
    test_seconds: float = 6.0
    """What one test may take, above 0, at most 600."""
    memory_mib: int = 512
    """What a program with its tests may take."""
    concurrency: int = 0
    """Programs at a time, up to 256; 0: one for each processor, at most 8."""
    deadline_seconds: float = 54.0
    """What is not run so long after the batch began is not scored."""

    def __post_init__(self) -> None:
        require_bounds(self.credit, self.memory_mib)
        if not 0 < self.test_seconds <= 600 or not self.deadline_seconds > 0:
            raise ValueError(
                "expected testSeconds above 0, at most 600, and deadlineSeconds above 0"
            )
        if not 0 <= self.concurrency <= 256:
            raise ValueError("concurrency: expected 0 to 256")

    def __call__(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``score``, the ``share`` of tests that passed, and the share that was out of ``time``.

        Raises DataError for a row without tests, UnscoredRows naming those whose sandbox was lost, NoSandbox.
        """
        del prompts
        tasks = [read_task(row, self.field) for row in rows]
        asked = list(zip(tasks, [one.text for one in completions], strict=True))
        found = asyncio.run(self._run_all(sandbox_maker(), asked))
        lost = tuple(place for place, one in enumerate(found) if isinstance(one, Exception))
        if lost:
            raise UnscoredRows(f"{len(lost)} of {len(found)}: {found[lost[0]]}", lost)
        return [self._told(one) for one in found if not isinstance(one, Exception)]

    async def _run_all(
        self, maker: SandboxMaker, asked: Sequence[tuple[CodeTask, str]]
    ) -> list[tuple[CaseVerdict, ...] | InfrastructureError]:
        free = asyncio.Semaphore(self.concurrency or programs_at_once())
        bounds = ProgramBounds(seconds=self.test_seconds, memory_bytes=self.memory_mib << 20)

        async def run(task: CodeTask, reply: str) -> tuple[CaseVerdict, ...] | InfrastructureError:
            try:
                async with free:
                    return await run_tests(maker, task, reply, bounds)
            except InfrastructureError as error:
                return error

        runs = [asyncio.ensure_future(run(*one)) for one in asked]
        _, late = await asyncio.wait(runs, timeout=self.deadline_seconds)
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        why = InfrastructureError(f"not run within {self.deadline_seconds:g} s (deadlineSeconds)")
        return [why if one in late else one.result() for one in runs]

    def _told(self, verdicts: Sequence[CaseVerdict]) -> dict[str, float]:
        late = sum(one.became == "time" for one in verdicts) / len(verdicts)
        score, share = credit_of(verdicts, self.credit)
        return {"score": score, "share": share, "time": late}


def require_bounds(credit: str, memory_mib: int) -> None:
    """Raise ValueError for settings that no program is run with."""
    if credit not in CREDITS:
        raise ValueError(f"credit: expected {' or '.join(CREDITS)}, got {credit!r}")
    if not MEMORY_MIB_MIN <= memory_mib <= MEMORY_MIB_MAX:
        raise ValueError(f"memoryMib: expected {MEMORY_MIB_MIN} to {MEMORY_MIB_MAX}")


def credit_of(verdicts: Sequence[CaseVerdict], credit: str) -> tuple[float, float]:
    """What a program is worth, and the share of its tests that passed."""
    share = sum(one.became == "passed" for one in verdicts) / len(verdicts)
    return share if credit == "share" else float(share == 1.0), share


def programs_at_once() -> int:
    """One for each processor, at most 8."""
    return min(8, os.cpu_count() or 1)
