from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource, hold_out
from rollout.environments.build import BUILTINS, build_environment
from rollout.environments.problems import (
    Difficulty,
    Problem,
    index_of,
    problem_at,
    render_problem,
    siblings,
)
from rollout.errors import SpecError
from rollout.turns import Action, Ending
from rollout.types import Message
from rollout_api.checks import catalog
from rollout_api.v1alpha1.environment import Environment

DIFFICULTIES = st.builds(
    Difficulty,
    digits=st.integers(1, 4),
    terms=st.integers(2, 4),
    operations=st.sampled_from(["+", "-", "*", "+-", "+*", "-*", "+-*"]),
)


def prompts(parameters, split):
    source = ArithmeticSource(parameters, split)
    return [row["prompt"] for row in source.rows(range(len(source)))]


def arithmetic(**given_parameters):
    listed = [{"name": name, "value": value} for name, value in given_parameters.items()]
    return build_environment(
        Environment.model_validate({"builtin": {"name": "arithmetic", "parameters": listed}})
    )


def test_the_registry_is_the_one_that_plans_check_against():
    assert set(BUILTINS) == catalog.ENVIRONMENTS


def test_two_digit_addition_holds_out_2000_problems_for_the_report():
    splits = {s: prompts(Arithmetic(), s) for s in ("train", "selection", "report")}

    assert {s: len(p) for s, p in splits.items()} == {
        "train": 7500,
        "selection": 500,
        "report": 2000,
    }
    everything = [p for listed in splits.values() for p in listed]
    assert sorted(everything) == sorted(f"{a:02d}+{b:02d}=" for a in range(100) for b in range(100))


@pytest.mark.parametrize("terms", [2, 3])
def test_no_reordering_of_a_held_out_sum_is_trained_on(terms):
    parameters = Arithmetic(terms=terms, digits=1 if terms == 3 else 2)

    trained = set(prompts(parameters, "train"))
    shown = set(prompts(parameters, "selection"))

    for prompt in prompts(parameters, "report"):
        operands = prompt.rstrip("=").split("+")
        for order in permutations(operands):
            again = "+".join(order) + "="
            assert again not in trained
            assert again not in shown


def test_the_split_does_not_depend_on_the_seed():
    builder = arithmetic()

    one, two = builder.source("report", 1), builder.source("report", 2)

    assert one.digest == two.digest
    assert one.rows([0, 1999]) == two.rows([0, 1999])


def test_splits_and_difficulties_have_digests_of_their_own():
    digests = {
        ArithmeticSource(parameters, split).digest
        for parameters in (Arithmetic(), Arithmetic(digits=3), Arithmetic(form="padded"))
        for split in ("train", "selection", "report")
    }

    assert len(digests) == 9


def test_few_problems_hold_out_fewer():
    parameters = Arithmetic(digits=1)

    assert {s: len(prompts(parameters, s)) for s in ("train", "selection", "report")} == {
        "train": 75,
        "selection": 5,
        "report": 20,
    }


def test_a_great_many_problems_are_never_listed():
    source = ArithmeticSource(Arithmetic(digits=4, terms=4, operations="+-*"), "train")

    assert len(source) == 10**16 * 27 - 2500
    assert source.rows([len(source) - 1])[0]["level"] == 4


@settings(max_examples=20, deadline=None)
@given(difficulty=DIFFICULTIES, data=st.data())
def test_every_training_position_is_another_problem_and_none_is_held_out(difficulty, data):
    parameters = Arithmetic(
        digits=difficulty.digits,
        terms=difficulty.terms,
        operations=difficulty.operations,
        held_out=50,
        selection=20,
    )
    source = ArithmeticSource(parameters, "train")
    held = hold_out(parameters)
    start = data.draw(st.integers(0, max(0, len(source) - 200)))

    rows = source.rows(range(start, min(start + 200, len(source))))

    shown = [row["prompt"] for row in rows]
    hidden = {
        render_problem(difficulty, problem_at(difficulty, i))[0]
        for i in (*held.report, *held.selection)
    }
    assert len(set(shown)) == len(shown)
    assert not set(shown) & hidden


@given(difficulty=DIFFICULTIES, data=st.data())
def test_an_answer_is_what_python_says(difficulty, data):
    index = data.draw(st.integers(0, difficulty.num_problems - 1))
    problem = problem_at(difficulty, index)

    prompt, answer = render_problem(difficulty, problem)

    assert eval(prompt.rstrip("=")) == int(answer)
    assert index_of(difficulty, problem) == index
    assert index in siblings(difficulty, index)


@pytest.mark.parametrize(
    ("form", "prompt", "answer"),
    [
        ("plain", "7+35=", "42"),
        ("padded", "07+35=", "042"),
        ("reversed", "7+35=", "24"),
        ("padded-reversed", "07+35=", "240"),
    ],
)
def test_a_form_writes_numbers_its_way(form, prompt, answer):
    difficulty = Difficulty(form=form)

    assert render_problem(difficulty, Problem(operands=(7, 35), operations=("+",))) == (
        prompt,
        answer,
    )


def test_a_row_has_prompt_messages_answer_and_level():
    row = arithmetic().source("train", 0).rows([0])[0]

    assert set(row) == {"prompt", "messages", "answer", "level"}
    assert row["messages"] == [{"role": "user", "content": row["prompt"]}]


async def test_an_episode_is_one_question_and_one_answer():
    builder = arithmetic()
    episode = builder.build(builder.source("train", 0).rows([0])[0])

    assert [m.role for m in (await episode.start()).messages] == ["user"]
    said = Message(role="assistant", content="4")
    assert await episode.step(Action(message=said, text="4")) == Ending()


@pytest.mark.parametrize(
    ("given_parameters", "says"),
    [
        ({"digits": "5"}, "digits: expected 1..4, got 5"),
        ({"terms": "1"}, "terms: expected 2..4"),
        ({"operations": "/"}, "operations: expected some of"),
        ({"operations": "++"}, "operations: expected some of"),
        ({"operations": ""}, "operations: expected some of"),
        ({"form": "roman"}, "form: expected one of plain, padded"),
        ({"form": "padded", "operations": "-"}, "needs operations '.'"),
        ({"heldOut": "0"}, "expected at least 1"),
        ({"heldOut": "9999999"}, "at most 1000000"),
        ({"digit": "2"}, "unknown parameter 'digit'; it takes digits, terms"),
        ({"digits": "two"}, "'digits': expected an integer, got 'two'"),
    ],
)
def test_a_bad_parameter_is_refused(given_parameters, says):
    with pytest.raises(SpecError, match=says):
        arithmetic(**given_parameters)


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(SpecError, match="no split 'test'; there are train, selection, report"):
        arithmetic().source("test", 0)


async def test_the_default_environment_shows_the_row():
    row = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    builder = build_environment(None)

    assert builder.source("train", 0) is None
    state = await builder.build(row).start()
    assert state.messages == (Message(role="user", content="hi"),)


def test_an_unknown_environment_lists_the_known_ones():
    with pytest.raises(
        SpecError,
        match="no environment 'chess'; there are arithmetic, code, musique-search, single-turn",
    ):
        build_environment(Environment.model_validate({"builtin": {"name": "chess"}}))
