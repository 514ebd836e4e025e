"""Batches, processes, tries and groups of one source: who is asked what, and what becomes of what failed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_runners import Told, away, calls, samples, source

from rollout.errors import RewardError, RewardUnavailable
from rollout.rewards.calls import SourceCalls


def lengths(texts):
    return [float(len(one)) for one in texts]


def values(found):
    return [one.values["mine"] for one in found]


@given(
    st.lists(st.text("ab", max_size=6), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(1, 4),
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_batches_processes_and_a_cache_change_no_value(texts, size, processes, entries):
    runners = [Told(lengths) for _ in range(processes)]
    free = iter(runners)
    told = source(batch_size=size, concurrency=processes, cache_entries=entries)
    one = SourceCalls(told, opens=lambda _: next(free))
    try:
        first, again = one.score(samples(*texts)), one.score(samples(*texts))
    finally:
        one.close()

    assert values(first) == values(again) == lengths(texts)
    asked = [call for runner in runners for call in runner.asked]
    assert all(len(call) <= (size or len(texts)) for call in asked)
    if entries >= len(texts):
        assert sorted(text for call in asked for text in call) == sorted(set(texts))


def test_as_many_calls_go_out_at_a_time_as_there_are_processes():
    meet = threading.Barrier(3, timeout=60)

    class Together(Told):
        def score(self, prompts, completions, rows):
            meet.wait()
            return super().score(prompts, completions, rows)

    one = SourceCalls(source(concurrency=3), opens=lambda _: Together(lengths))
    assert values(one.score(samples("a", "bb", "ccc"))) == [1.0, 2.0, 3.0]


def test_what_failed_outside_is_tried_again_alone_with_growing_pauses():
    pauses = []
    runner = Told(away(1, values=[1.0, None, 3.0]), away(0), [2.0])
    one = calls(runner, pauses=pauses, retries=2)

    assert values(one.score(samples("a", "b", "c"))) == [1.0, 2.0, 3.0]
    assert runner.asked == [["a", "b", "c"], ["b"], ["b"]]
    assert 0.25 <= pauses[0] <= 0.5 <= pauses[1] <= 1.0


def test_after_the_last_try_the_lost_are_named_and_what_the_others_cost():
    told = [{"score": 1.0, "cost/tokens": 7}, None]
    with pytest.raises(RewardUnavailable) as caught:
        calls(Told(away(1, values=told))).score(samples("a", "b"))
    assert caught.value.lost == (1,)
    assert caught.value.costs == [{"tokens": 7.0}, {}]


def test_a_fault_of_the_function_is_not_tried_again():
    runner = Told(RewardError("raised KeyError"))
    with pytest.raises(RewardError, match="KeyError"):
        calls(runner, retries=5).score(samples("a"))
    assert len(runner.asked) == 1


def test_each_group_is_one_call_with_its_samples_in_order():
    runner = Told(lengths)
    found = calls(runner, per_group=True).score(samples("a", "bb", "c", "dd", groups="ghgh"))

    assert runner.asked == [["a", "c"], ["bb", "dd"]]
    assert values(found) == [1.0, 2.0, 1.0, 2.0]


def test_a_sample_whose_siblings_were_all_lost_is_lost_too():
    runner = Told(lengths)
    with pytest.raises(RewardUnavailable, match="all but one of it were lost") as caught:
        calls(runner, per_group=True).score(samples("a", "b", "c", groups="ggh"))
    assert caught.value.lost == (2,)
    assert runner.asked == [["a", "b"]]


def test_a_group_that_could_not_be_compared_is_compared_again_whole():
    runner = Told(away(0, 1, values=[None, 5.0]), [1.0, 2.0])
    assert values(
        calls(runner, per_group=True, retries=1).score(samples("a", "b", groups="gg"))
    ) == [
        1.0,
        2.0,
    ]
    assert runner.asked == [["a", "b"]] * 2


@pytest.mark.parametrize("said", [[1.0], [1.0, 2.0, 3.0], [], {"a": 1.0}, 1.0])
def test_a_wrong_number_of_group_scores_is_named(said):
    with pytest.raises(RewardError, match=r"'mine'.*returned"):
        calls(Told(said), per_group=True).score(samples("a", "b", groups="gg"))


def test_where_nobody_knows_the_groups_nothing_is_compared():
    with pytest.raises(RewardError, match="score evaluations with other rewards"):
        calls(Told(lengths), per_group=True).score(samples("a", "b"))


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, 1e16, 10**400, "7", None])
def test_a_cost_that_is_none_is_the_functions_fault(cost):
    with pytest.raises(RewardError, match="said a cost of"):
        calls(Told([{"score": 1.0, "cost/tokens": cost}])).score(samples("a"))


def test_costs_are_no_reward():
    (found,) = calls(Told([{"score": 1.0, "cost/tokens": 900}])).score(samples("a"))
    assert (found.values, found.costs) == (
        {"mine": 1.0, "mine/score": 1.0},
        {"tokens": 900.0},
    )


def test_nothing_but_a_cost_is_no_value():
    with pytest.raises(RewardError, match="returned no named value"):
        calls(Told([{"cost/tokens": 900}])).score(samples("a"))


def test_names_without_end_are_refused():
    with pytest.raises(RewardError, match="65 named values"):
        calls(Told([{f"n{n}": 0.0 for n in range(65)}])).score(samples("a"))
