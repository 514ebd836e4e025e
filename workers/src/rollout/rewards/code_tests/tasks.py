"""From a row and a reply to a program and its hidden tests.

Tests lie in rows in the forms of the data sets that people train on: statements (MBPP's ``test_list``), a function
``check`` (HumanEval's ``test`` and ``entry_point``), or pairs of input and output of a whole program (APPS and its
like); a list may be written as JSON in a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.errors import DataError
from rollout.types import Row

CASES_MAX = 256
PROGRAM_BYTES_MAX = 64 << 10
CASE_BYTES_MAX = 512 << 10
_BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_LANGUAGES = frozenset({"", "py", "python", "python3"})
FORMS = (
    "statements (a text or a list of texts), or pairs of input and output"
    " ([{input, output}, ...] or {inputs: [...], outputs: [...]})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a whole program reads, and what it has to print."""

    given: str
    """On standard input."""
    wanted: str
    """On standard output."""


Cases = tuple[str, ...] | tuple[Pair, ...]
"""Test statements, each run by itself, or pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTask:
    """The hidden tests of a row, and what a program is completed with."""

    cases: Cases
    """In the row's order, 1 to 256."""
    entry_point: str = ""
    """Function that the tests call; empty: there is none in particular."""
    before: str = ""
    """The row's own beginning of the program, for a reply that lacks that function."""

    def program_of(self, reply: str) -> str:
        """The reply's last block of Python, else all of it; where it lacks the function, behind the row's own beginning."""
        blocks = [code for name, code in _BLOCK.findall(reply) if name.lower() in _LANGUAGES]
        code = blocks[-1] if blocks else reply
        begun = re.search(
            rf"^\s*(?:async\s+)?def\s+{re.escape(self.entry_point)}\b", code, re.MULTILINE
        )
        return code if begun or not self.entry_point else f"{self.before}{code}"


def read_task(row: Row, field: str) -> CodeTask:
    """The row's hidden tests. Raises DataError naming the field and what is expected there."""
    if field not in row and "entry_point" in row and "test" in row:
        name = str(row["entry_point"])
        checked = f"{row['test']}\ncheck({name})\n"
        before = str(row.get("code_prompt") or row.get("prompt") or "")
        return CodeTask(cases=_bounded((checked,), "test"), entry_point=name, before=before)
    if field not in row and "test_list" in row:
        begin = str(row.get("test_setup_code") or "") or "\n".join(row.get("test_imports") or ())
        cases = tuple(f"{begin}\n{one}" for one in _texts(row["test_list"], "test_list"))
        return CodeTask(cases=_bounded(cases, "test_list"))
    if field not in row:
        raise DataError(
            f"the row has no tests: expected a field {field!r} with {FORMS}, or HumanEval's test and"
            f" entry_point, or MBPP's test_list; it has {', '.join(map(repr, row))}"
        )
    return CodeTask(cases=_bounded(_cases(_parsed(row[field]), field), field))


def _parsed(value: Any) -> Any:
    """A list or an object that was written as JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _cases(value: Any, field: str) -> Cases:
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        inputs, outputs = value["inputs"], value["outputs"]
        if len(inputs) != len(outputs):
            raise DataError(f"{field}: {len(inputs)} inputs and {len(outputs)} outputs")
        return tuple(_pair(one, other, field) for one, other in zip(inputs, outputs, strict=True))
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and value and all(isinstance(one, Mapping) for one in value):
        if not all({"input", "output"} <= one.keys() for one in value):
            raise DataError(f"{field}: expected input and output in every test")
        return tuple(_pair(one["input"], one["output"], field) for one in value)
    return _texts(value, field)


def _pair(given: Any, wanted: Any, field: str) -> Pair:
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise DataError(
            f"{field}: expected input and output as texts, got {type(given).__name__} and {type(wanted).__name__}"
        )
    return Pair(given=given, wanted=wanted)


def _texts(value: Any, field: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DataError(f"{field}: expected {FORMS}, got {type(value).__name__}")
    if not all(isinstance(one, str) for one in value):
        raise DataError(f"{field}: expected {FORMS}, got a list that mixes other values")
    return tuple(value)


def _bounded(cases: Cases, field: str) -> Cases:
    if not 1 <= len(cases) <= CASES_MAX:
        raise DataError(f"{field}: expected 1 to {CASES_MAX} tests, got {len(cases)}")
    for one in cases:
        size = len((one if isinstance(one, str) else one.given + one.wanted).encode())
        if size > CASE_BYTES_MAX:
            raise DataError(f"{field}: a test has {size} bytes, at most {CASE_BYTES_MAX} are run")
    return cases
