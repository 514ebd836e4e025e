"""A wait for what must come is bounded against hanging only: on a busy machine it comes late, and that is no failure."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MIN = 30
SHORT = "# short:"
"""A line that says why it may be: what never comes is not waited for long, and a poll goes on."""
BY_PLACE = {"wait", "wait_for", "join", "result", "timeout"}
BY_NAME = {
    *("run", "communicate", "urlopen", "create_connection", "HTTPConnection", "HTTPSConnection"),
    *("wait_procs", "check_output", "check_call"),
}
BOUND = re.compile(r"(^|_)SECONDS_MAX$")


def number(node: ast.expr | None) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def bounds_of(call: ast.Call) -> Iterator[float | None]:
    """The seconds that a call is told to wait at most, as far as they are written there."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in BY_PLACE:
        yield from map(number, call.args)
    if name in BY_PLACE | BY_NAME:
        yield from (number(one.value) for one in call.keywords if one.arg == "timeout")


def find_short(text: str) -> list[int]:
    """Lines on which something is waited for that a busy machine may not bring in time."""
    found: set[tuple[int, int | None]] = set()
    for node in ast.walk(ast.parse(text)):
        given: list[float | None] = []
        if isinstance(node, ast.Call):
            given = list(bounds_of(node))
        elif isinstance(node, ast.Assign) and BOUND.search(ast.unparse(node.targets[0])):
            given = [number(node.value)]
        if any(one is not None and 0 < one < SECONDS_MIN for one in given):
            found.add((node.lineno, node.end_lineno))
    lines = text.splitlines()
    return sorted(
        first for first, last in found if not any(SHORT in one for one in lines[first - 1 : last])
    )


def test_no_test_waits_less():
    short = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("tests", "e2e")
        for path in (ROOT / folder).rglob("*.py")
        if "bench" not in path.parts
        for line in find_short(path.read_text())
    }
    assert sorted(short) == [], f"wait at least {SECONDS_MIN} s, or say why less: {SHORT} <reason>"


@pytest.mark.parametrize(
    "text",
    [
        "thread.join(5)",
        "assert event.wait(0.5)",
        "await asyncio.wait_for(x, 5)",
        "process.wait(timeout=2)",
        "subprocess.run(['x'], timeout=20)",
        "async with asyncio.timeout(1), x:\n    pass",
        "START_SECONDS_MAX = 20.0",
    ],
)
def test_the_search_finds_them(text):
    assert find_short(text) == [1]
    assert find_short(text.replace("\n", f"  {SHORT} nothing comes\n", 1) + f"  {SHORT} x") == []


@pytest.mark.parametrize("text", ["','.join(x)", "join(1)", "thread.join()", "x.wait(60)"])
def test_other_calls_are_none_of_its_business(text):
    assert find_short(text) == []
