"""Programs that are written in several attempts: what the shown tests say comes back, the hidden ones decide at the end.

Each attempt is run in a sandbox of its own (``rewards.code_tests``). An attempt that passes the shown tests, or the last
one, is the answer: all tests of the row are run against it, and nothing that they say is ever shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollout.data.rows.mapping import row_messages
from rollout.rewards.code_tests.reward import credit_of, programs_at_once, require_bounds
from rollout.rewards.code_tests.running import CaseVerdict, ProgramBounds, run_tests
from rollout.rewards.code_tests.tasks import CodeTask, Pair, read_task
from rollout.seams import DataSource
from rollout.tools.sandbox.chosen import sandbox_maker
from rollout.turns import Action, Ending, State
from rollout.types import Message, Row

ASKED = "Write Python that does this. Answer with one block of code: it is run, and tested."
ATTEMPTS_MAX = 16
TESTS_TOLD_MAX = 4
TEST_CHARACTERS_MAX = 400
LOADS = ("pass",)
"""The test of a program that has none to show: it begins without an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeParameters:
    """Parameters of the builtin ``code``."""

    tests_field: str = "tests"
    """Of the row, that holds its tests, in any form of the reward ``code-tests``."""
    shown_field: str = "shown_tests"
    """Of the row, that holds the tests that are shown."""
    shown: int = 1
    """Where a row has none of those, so many of its first tests, one less than it has at most; 0 to 4."""
    attempts: int = 3
    """Programs of one episode, 1 to 16; the last one counts."""
    credit: str = "all"
    """As in ``code-tests``."""
    attempt_penalty: float = 0.0
    """Taken for each attempt after which another is made, 0 to 1."""
    test_seconds: float = 6.0
    """What one test may take, above 0, at most 60."""
    memory_mib: int = 512
    """What a program with its tests may take."""
    instruction: str = ASKED
    """Stands behind the question, with the shown tests; empty: the row's messages are asked as they are."""

    def __post_init__(self) -> None:
        if not 0 <= self.shown <= TESTS_TOLD_MAX:
            raise ValueError(f"shown: expected 0 to {TESTS_TOLD_MAX}, got {self.shown}")
        if not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise ValueError(f"attempts: expected 1 to {ATTEMPTS_MAX}, got {self.attempts}")
        require_bounds(self.credit, self.memory_mib)
        if not 0 <= self.attempt_penalty <= 1:
            raise ValueError(f"attemptPenalty: expected 0 to 1, got {self.attempt_penalty}")
        if not 0 < self.test_seconds <= 60:
            raise ValueError(f"testSeconds: expected above 0, at most 60, got {self.test_seconds}")

    @property
    def bounds(self) -> ProgramBounds:
        """Of one program with its tests."""
        return ProgramBounds(seconds=self.test_seconds, memory_bytes=self.memory_mib << 20)


class Code:
    """One task."""

    def __init__(
        self,
        messages: tuple[Message, ...],
        tests: CodeTask,
        shown: CodeTask,
        rules: CodeParameters,
        free: asyncio.Semaphore,
    ) -> None:
        self._messages, self._tests, self._shown = messages, tests, shown
        self._rules, self._free = rules, free
        self._attempts = 0

    async def start(self) -> State:
        """The task, with the tests that are shown."""
        return State(messages=self._messages)

    async def step(self, action: Action) -> State | Ending:
        """What the shown tests say, or the end. Raises InfrastructureError where a sandbox is lost."""
        self._attempts += 1
        if self._attempts < self._rules.attempts:
            verdicts = await self._run(self._shown, action.text)
            if any(one.became != "passed" for one in verdicts):
                told = Message(role="user", content=tell(self._shown.cases, verdicts))
                signals = {"attempts": float(self._attempts)}
                penalty = 0.0 - self._rules.attempt_penalty
                return State(messages=(told,), turn_reward=penalty, signals=signals)
        return self._judge(await self._run(self._tests, action.text))

    async def _run(self, task: CodeTask, reply: str) -> tuple[CaseVerdict, ...]:
        async with self._free:
            return await run_tests(sandbox_maker(), task, reply, self._rules.bounds)

    def _judge(self, verdicts: Sequence[CaseVerdict]) -> Ending:
        passed = sum(one.became == "passed" for one in verdicts)
        score, share = credit_of(verdicts, self._rules.credit)
        return Ending(
            kind="passed" if share == 1.0 else "failed",
            detail=f"{passed} of {len(verdicts)} tests",
            turn_reward=score,
            signals={"attempts": float(self._attempts), "share": share},
        )

    async def close(self) -> None:
        """Nothing to free: each program's sandbox ends with its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBuilder:
    """Builds episodes; the rows are the run's."""

    parameters: CodeParameters
    """Of all its episodes."""
    free: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(programs_at_once()), compare=False
    )
    """A program runs on each processor at a time, on 8 at most."""

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    def build(self, row: Row) -> Code:
        """The episode of one row. Raises DataError for one without tests."""
        tests = read_task(row, self.parameters.tests_field)
        shown = self._shown(row, tests)
        return Code(self._asked(row, shown), tests, shown, self.parameters, self.free)

    def _shown(self, row: Row, tests: CodeTask) -> CodeTask:
        if self.parameters.shown_field in row:
            cases = read_task(row, self.parameters.shown_field).cases
        else:
            cases = tests.cases[: min(self.parameters.shown, len(tests.cases) - 1)]
        return replace(tests, cases=cases or LOADS)

    def _asked(self, row: Row, shown: CodeTask) -> tuple[Message, ...]:
        messages = row_messages(row)
        if not self.parameters.instruction:
            return messages
        parts = [messages[-1].text, self.parameters.instruction]
        if shown.cases != LOADS:
            parts.append(
                "\n".join(
                    ["It has to pass, among others:", *map(_written, shown.cases[:TESTS_TOLD_MAX])]
                )
            )
        return (*messages[:-1], Message(role="user", content="\n\n".join(parts)))


def tell(cases: Sequence[str | Pair], verdicts: Sequence[CaseVerdict]) -> str:
    """What did not pass, and why, for the policy to read: bounded in tests and characters."""
    lines = [
        _told(case, verdict)
        for case, verdict in zip(cases, verdicts, strict=True)
        if verdict.became != "passed"
    ]
    left = len(lines) - TESTS_TOLD_MAX
    more = [f"({left} more did not pass.)"] if left > 0 else []
    return "\n\n".join([*lines[:TESTS_TOLD_MAX], *more, "Answer with the whole program again."])


def _told(case: str | Pair, verdict: CaseVerdict) -> str:
    why = f": {verdict.why}" if verdict.why else ""
    if case in LOADS:
        return f"The program does not begin{why}."
    return f"This test did not pass ({verdict.became}{why}):\n{_written(case)}"


def _written(case: str | Pair) -> str:
    if isinstance(case, Pair):
        return f"Input:\n{_cut(case.given)}\nOutput:\n{_cut(case.wanted)}"
    return f"```python\n{_cut(case.strip())}\n```"


def _cut(text: str) -> str:
    left = len(text) - TEST_CHARACTERS_MAX
    return text if left <= 0 else f"{text[:TEST_CHARACTERS_MAX]}... ({left} characters more)"
