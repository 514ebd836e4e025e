"""The arithmetic environment: problems without end, some of them held out for ever.

Splits depend on the difficulty alone, never on a run's seed: what one run holds out, the run that
warm-started its model held out too. ``12+34`` and ``34+12`` always fall on the same side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from blake3 import blake3

from rollout.data.permutation import permute
from rollout.environments.problems import (
    Difficulty,
    problem_at,
    render_problem,
    siblings,
)
from rollout.environments.single_turn import SingleTurn, SingleTurnBuilder
from rollout.errors import SpecError
from rollout.seeds import derive_seed
from rollout.types import Row

SPLITS = ("train", "selection", "report")
SPLIT_VERSION = 1
"""Raised when the same difficulty would be split otherwise: part of the digest."""

MISSES_MAX = 1000
"""Families in a row that were too large for the room left, before a split is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Parameters of the builtin.

    ``held_out`` and ``selection`` shrink to a fifth and a twentieth of all problems where there are few. All the rest
    is training.
    """

    digits: int = 2
    """Of an operand, 1 to 4."""
    terms: int = 2
    """Operands, 2 to 4."""
    operations: str = "+"
    """Some of ``+-*``."""
    form: str = "auto"
    """How numbers are written (``Difficulty.form``). ``auto``: ``padded`` for sums (each digit of the answer then has
    its own place, which tiny models learn many times faster) and ``plain`` for everything else."""
    held_out: int = 2000
    """Problems of the report split, >= 1."""
    selection: int = 500
    """Problems of the selection split, >= 1."""

    def __post_init__(self) -> None:
        if self.held_out < 1 or self.selection < 1:
            raise ValueError("heldOut and selection: expected at least 1")
        if self.held_out + self.selection > 1_000_000:
            raise ValueError("heldOut and selection: expected at most 1000000 together")
        _ = self.difficulty

    @property
    def difficulty(self) -> Difficulty:
        """Which problems there are. Raises ValueError for a bad parameter."""
        written = "padded" if self.operations == "+" else "plain"
        return Difficulty(
            digits=self.digits,
            terms=self.terms,
            operations=self.operations,
            form=written if self.form == "auto" else self.form,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Problem indices of the two held-out splits, in the order drawn: any first so many are a sample."""

    report: tuple[int, ...]
    """Of the report split."""
    selection: tuple[int, ...]
    """Of the selection split; shares no family with the other."""


@lru_cache(maxsize=16)
def hold_out(parameters: Arithmetic) -> HeldOut:
    """Draw the held-out problems, whole families of equal sums at a time."""
    difficulty = parameters.difficulty
    families = _families(difficulty)
    report = _fill(families, min(parameters.held_out, difficulty.num_problems // 5))
    selection = _fill(families, min(parameters.selection, difficulty.num_problems // 20))
    return HeldOut(report=report, selection=selection)


def _families(difficulty: Difficulty) -> Iterator[tuple[int, ...]]:
    """Every family of siblings once, in a fixed pseudo-random order."""
    key = derive_seed(0, "arithmetic-split", SPLIT_VERSION)
    seen: set[int] = set()
    for slot in range(difficulty.num_problems):
        index = permute(slot, difficulty.num_problems, key)
        if index not in seen:
            family = siblings(difficulty, index)
            seen.update(family)
            yield family


def _fill(families: Iterator[tuple[int, ...]], wanted: int) -> tuple[int, ...]:
    """``wanted`` indices, or a few less where no small enough family is near; those are left out."""
    taken: list[int] = []
    misses = 0
    while len(taken) < wanted and misses < MISSES_MAX:
        family = next(families, ())
        fits = 0 < len(family) <= wanted - len(taken)
        taken.extend(family if fits else ())
        misses = 0 if fits else misses + 1
    return tuple(taken)


class ArithmeticSource:
    """The problems of one split, by position; training problems are counted, not listed."""

    def __init__(self, parameters: Arithmetic, split: str) -> None:
        if split not in SPLITS:
            raise SpecError(f"arithmetic: no split {split!r}; there are {', '.join(SPLITS)}")
        held = hold_out(parameters)
        self._difficulty = parameters.difficulty
        self._listed = {"report": held.report, "selection": held.selection}.get(split)
        together = sorted((*held.report, *held.selection))
        self._gaps = [index - rank for rank, index in enumerate(together)]
        self._length = (
            self._difficulty.num_problems - len(together)
            if self._listed is None
            else len(self._listed)
        )
        identity = f"arithmetic/{SPLIT_VERSION}/{split}/{sorted(asdict(parameters).items())}"
        self.digest = f"blake3:{blake3(identity.encode()).hexdigest()}"

    def __len__(self) -> int:
        return self._length

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """``prompt``, ``messages``, ``answer`` and ``level`` (digits) of each problem."""
        return [self._row(position) for position in positions]

    def _row(self, position: int) -> Row:
        if not 0 <= position < self._length:
            raise IndexError(f"position {position} outside {self._length} problems")
        index = (
            position + bisect_right(self._gaps, position)
            if self._listed is None
            else self._listed[position]
        )
        problem = problem_at(self._difficulty, index)
        prompt, answer = render_problem(self._difficulty, problem)
        messages = [{"role": "user", "content": prompt}]
        return {"prompt": prompt, "messages": messages, "answer": answer, "level": problem.level}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticBuilder:
    """Single-turn episodes over problems of its own."""

    parameters: Arithmetic
    """Which problems there are, and which are held out."""

    def source(self, split: str, seed: int) -> ArithmeticSource:
        """The problems of ``split``; ``seed`` does not matter, on purpose."""
        del seed
        return ArithmeticSource(self.parameters, split)

    def build(self, row: Row) -> SingleTurn:
        """The episode of one problem."""
        return SingleTurnBuilder().build(row)
