import math
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import RewardError, SpecError
from rollout.rewards.build import build_rewards
from rollout.rewards.builtins import KINDS, build_builtin, final_answer, last_boxed
from rollout.rewards.calls import RewardBatch
from rollout.rewards.source import RewardSource
from rollout.rewards.values import check_values
from rollout.types import Completion, Message
from rollout_api.checks import catalog
from rollout_api.v1alpha1.environment import Reward


def said(*texts, tokens=1):
    return [
        Completion(token_ids=(0,) * tokens, logprobs=(0.0,) * tokens, finish="stop", text=text)
        for text in texts
    ]


def rows(*answers):
    return [{"prompt": f"p{i}", "answer": answer} for i, answer in enumerate(answers)]


def score(reward, completions, given_rows):
    prompts = [(Message(role="user", content=row["prompt"]),) for row in given_rows]
    return list(reward(prompts, completions, given_rows))


def pipeline(*rewards):
    return build_rewards([Reward.model_validate(reward) for reward in rewards])


def run(built, completions, given_rows):
    prompts = [(Message(role="user", content=row["prompt"]),) for row in given_rows]
    return built.score(prompts, completions, given_rows)


def test_the_registry_is_the_one_that_plans_check_against():
    assert set(KINDS) == catalog.REWARDS


def test_exact_match_compares_stripped_text():
    reward = build_builtin("exact-match", {})

    assert score(reward, said("46", " 46\n", "046", "4 6", ""), rows(*["46"] * 5)) == [
        1,
        1,
        0,
        0,
        0,
    ]


def test_exact_match_may_ignore_case_and_read_another_field():
    reward = build_builtin("exact-match", {"ignoreCase": "true", "field": "gold"})

    assert score(reward, said("YES"), [{"prompt": "p", "gold": "yes"}]) == [1]


def test_length_falls_in_a_straight_line():
    reward = build_builtin("length", {"freeTokens": "10", "limitTokens": "20"})

    got = [score(reward, said("x", tokens=n), rows("a"))[0] for n in (1, 10, 15, 20, 99)]

    assert got == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_format_matches_the_whole_completion():
    reward = build_builtin("format", {"pattern": "<think>.*</think>.+"})

    assert score(
        reward, said("<think>a\nb</think> 4", "4 <think></think>4", "<think>"), rows(*"aaa")
    ) == [1, 0, 0]


def test_format_wants_a_boxed_answer_by_default():
    assert score(build_builtin("format", {}), said(r"so \boxed{4}.", "so 4"), rows(*"aa")) == [1, 0]


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        (r"The answer is \boxed{72}.", "Natalia ...\n#### 72", 1),
        (r"\boxed{72.0}", "#### 72", 1),
        (r"\boxed{1,072}", "#### 1,072", 1),
        (r"first \boxed{70}, no: \boxed{72}", "#### 72", 1),
        ("The answer is 72", "#### 72", 1),
        (r"\boxed{71}", "#### 72", 0),
        ("I do not know", "#### 72", 0),
        ("", "#### 72", 0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{\dfrac{2}{4}}", r"we get \boxed{\frac{1}{2}}", 1),
        (r"\boxed{x^2+2x+1}", r"\boxed{(x+1)^2}", 1),
        (r"\boxed{-3}", "-3", 1),
        (r"\boxed{3}", "-3", 0),
        (r"\boxed{", "#### 3", 0),
    ],
)
def test_math_verify_compares_as_mathematics(text, gold, expected):
    assert score(build_builtin("math-verify", {}), said(text), rows(gold)) == [expected]


def test_math_verify_may_require_the_box():
    reward = build_builtin("math-verify", {"requireBoxed": "true"})

    assert score(reward, said("72", r"\boxed{72}"), rows("72", "72")) == [0, 1]


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("a\n#### 1,234", "1234"),
        (r"x \boxed{\frac{1}{2}} y", r"\frac{1}{2}"),
        (" 7 ", "7"),
    ],
)
def test_the_final_answer_of_a_solution(solution, answer):
    assert final_answer(solution) == answer


@given(st.text(alphabet="{}\\boxed1 ", max_size=40))
def test_boxes_are_balanced_or_none(text):
    found = last_boxed(text)

    assert found is None or found.count("{") == found.count("}")


def test_the_reward_is_the_weighted_sum_and_keeps_its_parts():
    built = pipeline(
        {"builtin": {"name": "exact-match"}, "weight": "1.0"},
        {
            "builtin": {
                "name": "length",
                "parameters": [{"name": "limitTokens", "value": "4"}],
            },
            "weight": "-0.5",
            "name": "short",
        },
    )

    got = run(built, said("4", "5", tokens=2), rows("4", "4"))

    assert got == [
        (0.75, {"exact-match": 1.0, "short": 0.5}),
        (-0.25, {"exact-match": 0.0, "short": 0.5}),
    ]


def test_a_weight_of_zero_only_records():
    got = run(pipeline({"builtin": {"name": "exact-match"}, "weight": 0}), said("4"), rows("4"))

    assert got == [(0.0, {"exact-match": 1.0})]


def test_an_empty_batch_has_no_scores():
    assert run(pipeline({"builtin": {"name": "exact-match"}}), [], []) == []


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (
            {"builtin": {"name": "exactmatch"}},
            "no reward 'exactmatch'; there are code-tests, environment, exact-match",
        ),
        (
            {"builtin": {"name": "length", "parameters": [{"name": "max", "value": "3"}]}},
            "unknown parameter 'max'; it takes freeTokens, limitTokens",
        ),
        (
            {"builtin": {"name": "length", "parameters": [{"name": "limitTokens", "value": "x"}]}},
            "'limitTokens': expected an integer, got 'x'",
        ),
        (
            {"builtin": {"name": "length", "parameters": [{"name": "limitTokens", "value": "0"}]}},
            "0 <= freeTokens < limitTokens",
        ),
        (
            {"builtin": {"name": "format", "parameters": [{"name": "pattern", "value": "("}]}},
            "no regular expression",
        ),
        ({"model": {"uri": "hf://a/b"}}, "its model is not there"),
    ],
)
def test_a_reward_that_cannot_be_built_is_refused(reward, says):
    with pytest.raises(SpecError, match=says):
        pipeline(reward)


def test_a_row_without_its_answer_is_named():
    with pytest.raises(RewardError, match=r"'exact-match'.*no field 'answer'.*row 1 .*'second'"):
        run(
            pipeline({"builtin": {"name": "exact-match"}}),
            said("1", "2"),
            [{"prompt": "first", "answer": "1"}, {"prompt": "second"}],
        )


SOURCE = RewardSource(name="mine", path="my_rewards.py", function="mine")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0, 2.0, 3.0], "returned 3 values for 2 completions"),
        (1.0, "returned float, not a list"),
        (None, "returned NoneType, not a list"),
        ("ab", "returned str, not a list"),
        ([1.0, math.nan], "returned nan for row 1, prompt 'p1'; expected a finite number"),
        ([math.inf, 1.0], "returned inf for row 0, prompt 'p0'"),
        ([1.0, None], "returned None for row 1"),
        ([1.0, "x"], "returned 'x' for row 1"),
        ([{"a": 1.0}, {}], "returned no named value for row 1"),
        ([{"a": 1.0}, {"a": math.nan}], "returned nan for row 1"),
    ],
)
def test_anything_but_one_finite_number_each_is_refused(values, says):
    with pytest.raises(RewardError, match=r"'mine' .mine in my_rewards.py." + f".*{says}"):
        check_values(SOURCE, values, rows("a", "b"))


def test_named_floats_are_summed_and_kept_apart():
    got = check_values(SOURCE, [{"a": 1.0, "b": 0.5}, 2], rows("a", "b"))

    assert [one.values for one in got] == [
        {"mine": 1.5, "mine/a": 1.0, "mine/b": 0.5},
        {"mine": 2.0},
    ]


def test_an_exact_match_costs_sixteen_calls_of_functions():
    """A promise to the main job's step time, in what costs the same on every machine: 256 are 1 of its 126 ms."""
    built = pipeline({"builtin": {"name": "exact-match"}})
    size = 256
    batch = RewardBatch(
        prompts=[()] * size, completions=said(*["46"] * size), rows=rows(*["46"] * size)
    )
    built.judge(batch)  # what is done once is done

    assert calls_of(lambda: built.judge(batch)) <= 16 * size


def calls_of(work):
    """How many functions are called, of Python and of C."""
    seen = Counter()
    sys.setprofile(lambda _frame, event, _what: seen.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]
