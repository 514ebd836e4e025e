"""Arithmetic problems as numbers: every problem of a difficulty has an index, and its text. Pure.

Difficulty is graded by digits of an operand (1-4), number of terms (2-4) and operations. An index is a
problem's operands and operations written in mixed base, so nothing is enumerated, however many.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal, get_args

Form = Literal["plain", "padded", "reversed", "padded-reversed"]
COMMUTATIVE = "+*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Which problems there are."""

    digits: int = 2
    """Of an operand, 1 to 4: it is 0 to 10^digits - 1."""
    terms: int = 2
    """Operands, 2 to 4."""
    operations: str = "+"
    """Which of ``+-*`` may join them."""
    form: str = "plain"
    """``plain``; ``padded`` with zeros to equal length; ``reversed``, the answer's digits from the last to the first
    (each digit of a sum then depends on what was already written); or both."""

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 4:
            raise ValueError(f"digits: expected 1..4, got {self.digits}")
        if not 2 <= self.terms <= 4:
            raise ValueError(f"terms: expected 2..4, got {self.terms}")
        known = set(self.operations) <= set("+-*")
        if not self.operations or not known or len(set(self.operations)) < len(self.operations):
            raise ValueError(f"operations: expected some of '+-*', got {self.operations!r}")
        if self.form not in get_args(Form):
            raise ValueError(
                f"form: expected one of {', '.join(get_args(Form))}, got {self.form!r}"
            )
        if self.form != "plain" and self.operations != "+":
            raise ValueError(f"form {self.form!r} needs operations '+': other answers have a sign")

    @property
    def base(self) -> int:
        """How many values an operand may have."""
        return 10**self.digits

    @property
    def num_problems(self) -> int:
        """How many problems there are, ``12+34`` and ``34+12`` counted as two."""
        return self.base**self.terms * len(self.operations) ** (self.terms - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """``operands[0] operations[0] operands[1] ...``, read with the usual precedence."""

    operands: tuple[int, ...]
    """In the order written."""
    operations: tuple[str, ...]
    """Between them, one less."""

    @property
    def value(self) -> int:
        """The answer."""
        total, product, sign = 0, self.operands[0], 1
        for operation, operand in zip(self.operations, self.operands[1:], strict=True):
            if operation == "*":
                product *= operand
            else:
                total += sign * product
                product, sign = operand, 1 if operation == "+" else -1
        return total + sign * product

    @property
    def level(self) -> int:
        """Digits of the longest operand."""
        return max(len(str(operand)) for operand in self.operands)


def problem_at(difficulty: Difficulty, index: int) -> Problem:
    """The problem of an index in ``range(num_problems)``."""
    operations = []
    for _ in range(difficulty.terms - 1):
        index, choice = divmod(index, len(difficulty.operations))
        operations.append(difficulty.operations[choice])
    operands = []
    for _ in range(difficulty.terms):
        index, operand = divmod(index, difficulty.base)
        operands.append(operand)
    return Problem(operands=tuple(operands), operations=tuple(operations))


def index_of(difficulty: Difficulty, problem: Problem) -> int:
    """The inverse of ``problem_at``."""
    index = 0
    for operand in reversed(problem.operands):
        index = index * difficulty.base + operand
    for operation in reversed(problem.operations):
        index = index * len(difficulty.operations) + difficulty.operations.index(operation)
    return index


def siblings(difficulty: Difficulty, index: int) -> tuple[int, ...]:
    """The indices of the same problem in another order (``12+34``, ``34+12``), itself included."""
    problem = problem_at(difficulty, index)
    if len(set(problem.operations)) > 1 or problem.operations[0] not in COMMUTATIVE:
        return (index,)
    orders = sorted(set(permutations(problem.operands)))
    return tuple(
        index_of(difficulty, Problem(operands=order, operations=problem.operations))
        for order in orders
    )


def render_problem(difficulty: Difficulty, problem: Problem) -> tuple[str, str]:
    """Prompt and answer as text: ``12+34=`` and ``46``."""
    padded = difficulty.form.startswith("padded")
    width = difficulty.digits if padded else 1
    parts = [f"{problem.operands[0]:0{width}d}"]
    for operation, operand in zip(problem.operations, problem.operands[1:], strict=True):
        parts.append(f"{operation}{operand:0{width}d}")
    longest = len(str(difficulty.terms * (difficulty.base - 1))) if padded else 1
    answer = f"{problem.value:0{longest}d}"
    return "".join(parts) + "=", answer[::-1] if difficulty.form.endswith("reversed") else answer
