"""``rollout env``: what there is, and one episode played with what a person writes."""

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.environments.build import BUILTINS, EXPLAINED, PARAMETERS
from rollout.errors import RolloutError

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>'
CODE = """
class Guess:
    closed = 0

    def __init__(self, row):
        self.row, self.tries = row, 0

    @classmethod
    def rows(cls, split):
        return [{"prompt": f"{split} {n}", "answer": str(n)} for n in range(3)]

    def start(self):
        return f"Guess, {self.row['prompt']}."

    def step(self, reply):
        self.tries += 1
        if reply == "break":
            raise RuntimeError("no such shelf")
        return "Not that one.", reply == self.row["answer"]

    def close(self):
        type(self).closed += 1


class Paid(Guess):
    async def start(self):
        from rollout.turns import State
        return State(messages=())

    async def step(self, action):
        from rollout.turns import Ending
        return Ending(kind="guessed", turn_reward=0.5, signals={"tries": 1})
"""


def called(*words, written=""):
    return CliRunner().invoke(app, ["env", *words], input=written)


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"played_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_every_builtin_is_listed_with_what_it_takes():
    listed = {one["name"]: one for one in json.loads(called("list", "--output", "json").stdout)}

    assert set(listed) == set(BUILTINS) == set(EXPLAINED) == set(PARAMETERS)
    assert listed["arithmetic"]["parameters"]["heldOut"] == "2000"
    assert "digits=2" in called("list").stdout


def test_calls_are_answered_and_the_last_reply_is_scored():
    words = ("try", "arithmetic", "--tool", "calculator", "--parameter", "form=plain")
    done = called(*words, written=f"{CALL}\n6\n")

    assert done.exit_code == 0, done.output
    assert "tool calculator(expression)" in done.stdout
    assert 'call calculator {"expression": "2*3"} (ok)' in done.stdout
    assert "result calculator: 6" in done.stdout
    assert "ended stop (owner policy)" in done.stdout
    assert "reward exact-match 0 (answer " in done.stdout


def test_a_users_class_is_played_until_it_ends(module):
    done = called("try", f"{module}.Guess", "--row", "2", written="1\n2\n")

    assert "user: Guess, train 2." in done.stdout
    assert "user: Not that one." in done.stdout
    assert "reward exact-match 1 (answer 2)" in done.stdout


def test_rewards_of_turns_and_numbers_are_shown(module):
    done = called("try", f"{module}.Paid", written="x\n")

    assert "turn 1 reward 0.5" in done.stdout
    assert "turn 1 signals tries 1" in done.stdout
    assert "ended guessed (owner policy)" in done.stdout
    assert "reward environment 0.5" in done.stdout


def test_an_episode_that_is_left_or_fails_is_closed_and_has_no_reward(module):
    left = called("try", f"{module}.Guess", written="7\n")
    failed = called("try", f"{module}.Guess", written="break\n")

    assert "left before its end" in left.stderr
    assert "reward" not in left.stdout
    assert "turn 1: RuntimeError: no such shelf" in str(failed.exception)
    assert __import__(module).Guess.closed == 2


def test_rows_are_those_of_a_file_and_may_be_searched_in(tmp_path):
    file = tmp_path / "rows.jsonl"
    row = {"prompt": "who barks?", "answer": "dogs", "documents": ["cats sleep", "dogs bark"]}
    file.write_text(json.dumps(row) + "\n")
    call = '<tool_call>{"name": "search", "arguments": {"query": "bark", "k": 1}}</tool_call>'
    words = ("try", "single-turn", "--data", str(file), "--tool", "search")
    done = called(*words, written=f"{call}\ndogs\n")

    assert "dogs bark" in done.stdout
    assert "reward exact-match 1 (answer dogs)" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chess"], "no environment 'chess'; there are arithmetic"),
        (["arithmetic", "--row", "99999999"], "--row 99999999: split train has"),
        (["arithmetic", "--tool", "abacus"], "--tool abacus: no such tool"),
        (["arithmetic", "--parameter", "digits"], "--parameter digits: expected NAME=VALUE"),
        (["arithmetic", "--data", "rows.jsonl"], "brings its own rows"),
        (["single-turn"], "brings no rows of its own; give --data"),
        (["arithmetic", "--parameter", "digits=2", "--parameter", "digits=3"], "parameters"),
        (["arithmetic", "--parameter", "sides=2"], "unknown parameter 'sides'"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(words, said):
    done = called("try", *words)

    assert isinstance(done.exception, RolloutError)
    assert said in str(done.exception)


def test_a_reply_of_several_lines_stands_between_fences(module):
    block = "```python\nx = 1\n\n```"
    done = called("try", f"{module}.Guess", written=f"{block}\n0\n")

    assert done.exit_code == 0, done.output
    assert done.stdout.count("Not that one.") == 1


def test_a_plugins_folder_is_played(module, tmp_path):
    CliRunner().invoke(app, ["plugins", "new", "polite", "--kind", "environment"])
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Ask for tea."}\n')
    done = called("try", "polite", "--data", "rows.jsonl", written="Tea.\nTea, please.\n")

    assert done.exit_code == 0, done.output
    assert "user: Ask for tea." in done.stdout
    assert done.stdout.count("Say please.") == 1
