"""``code``: what the policy is shown of its tests, what comes back after an attempt, and what decides at the end."""

import asyncio

import pytest

from rollout.environments import code as code_module
from rollout.environments.build import build_environment
from rollout.environments.code import TESTS_TOLD_MAX
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.turns import Action, Ending, State
from rollout.types import Message
from rollout_api.v1alpha1.environment import Environment

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def sandboxes(sandbox_host):
    """Skipped by name where there are none."""


ASKED = [{"role": "user", "content": "Add two numbers."}]
TESTS = ["assert add(1, 2) == 3", "assert add(7, 5) == 12", "assert add(-1, 1) == 0"]
ROW = {"messages": ASKED, "prompt": "Add two numbers.", "tests": TESTS}
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "def add(a, b):\n    return a - b"
CHEAT = "def add(a, b):\n    return 3"
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]


def build(**parameters):
    listed = [{"name": name, "value": str(value)} for name, value in parameters.items()]
    named = {"builtin": {"name": "code", "parameters": listed}}
    return build_environment(Environment.model_validate(named))


def play(replies, row=ROW, **parameters):
    async def episode():
        made = build(**parameters).build(row)
        heard = [await made.start()]
        for turn, text in enumerate(replies):
            message = Message(role="assistant", content=text)
            heard.append(await made.step(Action(message=message, text=text, turn=turn)))
        await made.close()
        return heard

    return asyncio.run(episode())


def test_the_task_shows_its_first_test_and_no_other():
    (state,) = play([])

    text = state.messages[-1].text
    assert text.startswith("Add two numbers.")
    assert TESTS[0] in text
    assert not any(test in text for test in TESTS[1:])


@pytest.mark.parametrize("parameters", [{"shown": 0}, {"instruction": ""}])
def test_a_task_may_show_none(parameters):
    (state,) = play([], **parameters)
    assert "assert" not in state.messages[-1].text


def test_a_wrong_attempt_is_told_what_did_not_pass_and_a_right_one_ends():
    _, told, ending = play([WRONG, RIGHT], attemptPenalty="0.25")

    assert isinstance(told, State)
    assert TESTS[0] in told.messages[0].text
    assert told.turn_reward == -0.25
    assert (ending.kind, ending.owner, ending.turn_reward) == ("passed", "policy", 1.0)
    assert ending.signals == {"attempts": 2, "share": 1}


def test_what_only_passes_the_shown_test_is_judged_by_the_hidden_ones():
    _, ending = play([CHEAT])

    assert isinstance(ending, Ending)
    assert (ending.kind, ending.turn_reward) == ("failed", 0)
    assert ending.signals["share"] == pytest.approx(1 / 3)
    assert ending.detail == "1 of 3 tests"


def test_the_last_attempt_is_the_answer_whatever_the_shown_test_says():
    *_, ending = play([WRONG, WRONG, "def add(a, b):\n    return 12"], credit="share")

    assert (ending.kind, ending.signals["attempts"]) == ("failed", 3)
    assert ending.turn_reward == pytest.approx(1 / 3)


def test_what_hidden_tests_say_is_told_to_nobody():
    heard = play([CHEAT, CHEAT], shown=2, attempts=3)

    words = "".join(
        one.text for state in heard if isinstance(state, State) for one in state.messages
    )
    assert TESTS[1] in words
    assert TESTS[2] not in words


def test_a_program_that_does_not_begin_is_told_so_where_no_test_is_shown():
    row = {
        "messages": ASKED,
        "prompt": "def double(x):\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    }
    _, told, ending = play(
        ["import nowhere\ndef double(x):\n    return 2 * x", "    return 2 * x"], row
    )

    assert "does not begin: ModuleNotFoundError: No module named 'nowhere'" in told.messages[0].text
    assert ending.kind == "passed"


def test_a_whole_program_is_shown_what_it_printed():
    _, told, ending = play(
        ["print(4)", "print(sum(map(int, input().split())))"], {**ROW, "tests": PAIRS}
    )

    assert "it printed '4\\n'" in told.messages[0].text
    assert "Output:\n3" in told.messages[0].text
    assert ending.kind == "passed"


def test_a_row_may_name_its_shown_tests():
    shown = ["assert add(100, 1) == 101"]
    state, told = play([WRONG], {**ROW, "shown_tests": shown})

    assert shown[0] in state.messages[-1].text
    assert TESTS[0] not in state.messages[-1].text + told.messages[0].text


def test_what_is_told_is_bounded():
    long = [f"assert add({n}, 0) == 'x' * 1000 + '{'y' * 1000}'" for n in range(40)]
    _, told = play([WRONG], {**ROW, "shown_tests": long})

    text = told.messages[0].text
    assert text.count("did not pass (") == TESTS_TOLD_MAX
    assert f"({len(long) - TESTS_TOLD_MAX} more did not pass.)" in text
    assert len(text) < 4_000


def test_a_program_that_never_ends_is_the_policys_doing():
    _, told = play(["while True: pass"], testSeconds="0.5")
    assert "(time: more than 0.5 s)" in told.messages[0].text


def test_a_sandbox_that_is_lost_is_nobodys_reward(monkeypatch):
    class Lost:
        async def open(self, limits):
            raise InfrastructureError("the sandbox is gone")

    monkeypatch.setattr(code_module, "sandbox_maker", Lost)
    with pytest.raises(InfrastructureError, match="is gone"):
        play([RIGHT])


def test_a_row_without_tests_is_named():
    with pytest.raises(DataError, match="the row has no tests"):
        build().build({"messages": ASKED})


@pytest.mark.parametrize(
    "bad",
    [
        {"attempts": 0},
        {"shown": 9},
        {"credit": "half"},
        {"attemptPenalty": 2},
        {"testSeconds": 0},
        {"memoryMib": 1},
        {"tries": 1},
    ],
)
def test_a_bad_parameter_is_named(bad):
    with pytest.raises(SpecError, match=f"environment code: .*{next(iter(bad))}"):
        build(**bad)
