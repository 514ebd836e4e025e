"""``code-tests``: which programs pass the hidden tests of their rows, in each form that rows have them."""

import asyncio
import json

import pytest

from rollout.errors import DataError, InfrastructureError, SpecError, UnscoredRows
from rollout.rewards.builtins import build_builtin
from rollout.rewards.code_tests import reward as reward_module
from rollout.rewards.code_tests.reward import CodeTests
from rollout.rewards.code_tests.running import ProgramBounds, run_tests
from rollout.rewards.code_tests.tasks import CASES_MAX, Pair, read_task
from rollout.tools.sandbox.chosen import bubblewrap
from rollout.types import Completion

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def sandboxes(sandbox_host):
    """Skipped by name where there are none."""


def said(text):
    return Completion(token_ids=(), logprobs=(), finish="stop", text=text)


def score(reply, row, **parameters):
    (found,) = CodeTests(**parameters)([[]], [said(reply)], [row])
    return found


def verdicts(program, *cases, seconds=6.0):
    task = read_task({"tests": list(cases)}, "tests")
    found = asyncio.run(run_tests(bubblewrap(), task, program, ProgramBounds(seconds=seconds)))
    return [one.became for one in found]


ADD = "def add(a, b):\n    return a + b\n"
HUMANEVAL = {
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n",
}
MBPP = {"test_list": ["assert add(1, 2) == 3", "assert root(add(8, 8)) == 4.0"]}
MBPP["test_setup_code"] = "from math import sqrt as root"
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]
READS = "a, b = map(int, input().split())\nprint(a + b, end='  \\n\\n')"


@pytest.mark.parametrize(
    ("reply", "row"),
    [
        (ADD, {"tests": "assert add(1, 2) == 3"}),
        (ADD, {"tests": json.dumps(["assert add(1, 2) == 3"])}),
        (ADD, MBPP),
        ("    return 2 * x", HUMANEVAL),
        ("Think.\n```python\ndef double(x):\n    return x + x\n```\nDone.", HUMANEVAL),
        (READS, {"tests": PAIRS}),
        (f"```py\n{READS}\n```", {"tests": {"inputs": ["1 2"], "outputs": ["3"]}}),
    ],
)
def test_a_right_program_passes_in_every_form(reply, row):
    assert score(reply, row) == {"score": 1.0, "share": 1.0, "time": 0.0}


@pytest.mark.parametrize(
    ("reply", "row", "share"),
    [
        (
            "def add(a, b):\n    return a - b",
            {"tests": ["assert add(1, 0) == 1", "assert add(1, 1) == 2"]},
            0.5,
        ),
        ("def add(", {"tests": ["assert add(1, 0) == 1"]}, 0.0),
        ("", {"tests": ["assert True"]}, 0.0),
        ("print(3)", {"tests": PAIRS}, 0.5),
        ("raise SystemExit(0)", {"tests": ["assert True"]}, 0.0),
        ("print('x' * 10_000_000)", {"tests": PAIRS}, 0.0),
    ],
)
def test_a_wrong_program_earns_nothing_or_its_share(reply, row, share):
    assert (score(reply, row)["score"], score(reply, row)["share"]) == (0.0, share)
    assert score(reply, row, credit="share")["score"] == share


def test_the_last_block_of_python_is_the_program():
    reply = f"```python\nbroken(\n```\n```json\n{{}}\n```\nbetter:\n```python\n{ADD}```\n```text\n3\n```"

    assert read_task({"tests": "add"}, "tests").program_of(reply) == ADD


def test_a_test_that_is_late_costs_no_other():
    program = "def f(x):\n    while x:\n        pass\n    return 1\n"

    cases = ["assert f(0) == 1", "assert f(1) == 1", "assert f(0) == 1"]

    assert verdicts(program, *cases, seconds=1.0) == ["passed", "time", "passed"]


def test_a_program_that_ends_itself_fails_that_test_alone():
    program = "import os\ndef f(x):\n    if x:\n        os._exit(0)\n    return 1\n"

    assert verdicts(program, "assert f(0) == 1", "f(1)", "assert f(0) == 1") == [
        "passed",
        "error",
        "passed",
    ]


KINDS = """
import collections, math
class Box:
    def __init__(self, held): self.held = held
    def __len__(self): return len(self.held)
    def __iter__(self): return iter(self.held)
    def grow(self, one): self.held.append(one); return self
def same(x): return x
def box(*held): return Box(list(held))
def sort(items): items.sort()
def count(n):
    while True:
        yield n
        n += 1
def fail(): raise KeyError('no')
Point = collections.namedtuple('Point', 'x y')
"""


@pytest.mark.parametrize(
    "case",
    [
        "x = {'a': [1, (2.5, None)], (1, 2): {3, b'4'}, frozenset({1}): 10**5000}\nassert same(x) == x",
        "assert same(range(3)) == range(3) and same(1j) == 1j and same(True) is True",
        "import math\nassert math.isnan(same(float('nan'))) and same(float('inf')) > 1e308",
        "items = [3, 1, 2]\nsort(items)\nassert items == [1, 2, 3]",
        "b = box(1, 2)\nassert len(b) == 2 and list(b) == [1, 2] and b.grow(3).held == [1, 2, 3]",
        "b = box(1)\nb.held = [7]\nassert b.held == [7] and same(b).held == [7] and b == b",
        "c = count(5)\nassert [next(c), next(c)] == [5, 6]",
        "import itertools\nassert list(itertools.islice(count(1), 3)) == [1, 2, 3]",
        "assert Point(1, 2) == (1, 2)",
        "try:\n    fail()\nexcept KeyError:\n    pass\nelse:\n    assert False",
        "def check(f):\n    assert f(2) == 2\ncheck(same)",
    ],
)
def test_values_come_over_as_they_are(case):
    assert verdicts(KINDS, case) == ["passed"]


def test_what_a_test_cannot_hand_over_is_an_error_of_the_test():
    assert verdicts(KINDS, "assert same(lambda: 1)") == ["error"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "x"}, "the row has no tests: expected a field 'tests'"),
        ({"tests": []}, f"tests: expected 1 to {CASES_MAX} tests, got 0"),
        ({"tests": 7}, "tests: expected statements"),
        ({"tests": ["x", 7]}, "a list that mixes other values"),
        ({"tests": [{"input": "x"}]}, "expected input and output in every test"),
        ({"tests": [{"input": 1, "output": "x"}]}, "expected input and output as texts, got int"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"tests": ["x" * (1 << 20)]}, "a test has 1048576 bytes"),
    ],
)
def test_a_row_without_usable_tests_is_named(row, why):
    with pytest.raises(DataError, match=why):
        score(ADD, row)


def test_pairs_are_read_in_order():
    task = read_task({"tests": PAIRS}, "tests")

    assert task.cases == (Pair(given="1 2\n", wanted="3\n"), Pair(given="5 5", wanted="10"))


class Lost:
    """A maker of sandboxes of which none comes up."""

    async def open(self, limits):
        raise InfrastructureError("no memory for a sandbox")


def test_a_sandbox_that_is_lost_scores_nobody(monkeypatch):
    monkeypatch.setattr(reward_module, "sandbox_maker", Lost)

    with pytest.raises(UnscoredRows, match="1 of 1: no memory") as caught:
        score(ADD, {"tests": "assert add(1, 2) == 3"})

    assert caught.value.rows == (0,)


def test_what_is_not_run_in_time_is_not_scored():
    loop = "while True:\n    pass"
    rows = [{"tests": "assert True"}] * 2

    with pytest.raises(UnscoredRows, match="deadlineSeconds"):
        CodeTests(concurrency=1, deadline_seconds=2.0)([[], []], [said(loop), said(loop)], rows)


@pytest.mark.parametrize("wrong", [{"credit": "some"}, {"testSeconds": "0"}, {"memoryMib": "1"}])
def test_a_wrong_parameter_is_refused(wrong):
    with pytest.raises(SpecError, match=r"reward code-tests"):
        build_builtin("code-tests", wrong)
