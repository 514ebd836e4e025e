"""Batches in virtual time: processes die, freeze and are replaced at any point, answers are lost, results are half written.

A seed that fails prints its schedule and what happened; ``batch_story.py SEED`` beside this file runs it again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from batch_story import (
    BROKEN_LINE,
    KINDS,
    LOST_LINE,
    NO_PLACE,
    NUM_ROWS,
    POWER,
    TWICE_LINE,
    BatchStory,
    build_scenario,
    run_batch,
    simulate_batch,
    undisturbed,
)
from plans import changed
from scenario import Fault

from rollout.actor.runner import RunnerParts
from rollout.coordinator.batch_run import BatchRows
from rollout.seeds import derive_seed

QUICK, LONG = 30, 1000
"""How many: eight a second on a quiet core."""
CAUGHT_WITHIN = 15


def check(seeds):
    done = Counter()
    for seed in seeds:
        report = simulate_batch(seed)
        assert not report.broken, report.explain()
        done.update(report.counts)
    return done


def test_the_undisturbed_batch_has_each_row_once_in_the_order_of_the_file():
    files = {
        name: [json.loads(line) for line in data.splitlines()]
        for name, data in undisturbed().items()
    }
    codes = Counter(one["error"]["code"] for one in files["errors.jsonl"])
    rows = [one.get("row", one.get("custom_id")) for one in files["results.jsonl"]]

    assert codes == {"invalid_row": 1, "engine_failed": 1, "duplicate_custom_id": 1}
    assert len(rows) == len(set(rows)) == NUM_ROWS - 3
    places = [
        number if number % 3 else f"row-{number}" if number != TWICE_LINE - 1 else "twice"
        for number in range(NUM_ROWS)
        if number not in {BROKEN_LINE, LOST_LINE, TWICE_LINE + 2}
    ]
    assert rows == places
    forms = Counter(
        one["response"]["body"]["object"] for one in files["results.jsonl"] if "response" in one
    )
    assert forms == {"text_completion": 4, "chat.completion": 5}


def test_a_batch_that_is_killed_at_each_phase_ends_the_same():
    done = check(range(QUICK))

    assert done["killed while results were written"] >= 3
    assert done["results refused by their place"] > 0
    assert done["told to leave"] > 0
    assert done["interruptions"] > 0
    assert done["late copies"] > 0
    assert done[f"fault {POWER}"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, LONG, 194))
def test_many_batches_that_are_killed_at_each_phase_end_the_same(first):
    check(range(first, min(LONG, first + 194)))


def test_the_seeds_meet_every_fault():
    scenarios = [build_scenario(seed) for seed in range(100)]

    assert {fault.kind for one in scenarios for fault in one.faults} == set(KINDS)
    assert {one.tasks_max for one in scenarios} == {1, 2, 4}
    assert {one.num_actors for one in scenarios} == {1, 2, 3}


def test_actors_that_ask_for_rows_while_they_work_write_what_one_that_does_not_writes():
    calm = build_scenario(0).calm()

    for num_actors, tasks_max in ((1, 1), (3, 1), (3, 4)):
        report = run_batch(replace(calm, num_actors=num_actors, tasks_max=tasks_max))
        assert not report.broken
        assert report.files == undisturbed()


def test_a_place_of_results_that_stays_away_is_named_and_ends_the_run_with_its_answers_kept(
    monkeypatch,
):
    scenario = build_scenario(0)
    plan = changed(scenario.plan, full_seconds=30.0)
    gone = Fault(at=0.1, kind=NO_PLACE, who=0, seconds=0.0)
    monkeypatch.setattr(BatchStory, "ending", "StoreError")
    named = []
    real = BatchStory._look_at_status

    def look(self):
        named.extend(one.what for one in self._world.status().waiting)
        real(self)

    monkeypatch.setattr(BatchStory, "_look_at_status", look)

    report = run_batch(replace(scenario.calm(), plan=plan, faults=(gone,) * 200))

    assert not report.broken, report.explain()
    assert report.files == {}
    assert "the place of results" in named


def test_a_seed_tells_the_same_story_twice():
    assert run_batch(build_scenario(3)).trace == run_batch(build_scenario(3)).trace


def planted_is_caught():
    assert undisturbed()
    return any(simulate_batch(seed).broken for seed in range(CAUGHT_WITHIN))


def test_noise_that_depends_on_the_try_is_caught(monkeypatch):
    assert undisturbed()

    def noise_of(self, task, *of_episode):
        return derive_seed(self.seed, task.noise_domain, task.ordinal, task.epoch)

    monkeypatch.setattr(RunnerParts, "noise_of", noise_of)

    assert planted_is_caught()


def test_rows_that_another_life_hands_out_in_another_order_are_caught(monkeypatch):
    assert undisturbed()
    right, calls = BatchRows.evaluation, iter(range(10**6))

    def evaluation(self, name, split, positions):
        turned = len(self.asked) - 1 if next(calls) > 5 else 0
        return right(self, name, split, [abs(turned - one) for one in positions])

    monkeypatch.setattr(BatchRows, "evaluation", evaluation)

    assert planted_is_caught()


def test_results_without_the_rows_that_ended_last_are_caught(monkeypatch):
    assert undisturbed()
    monkeypatch.setattr(
        "rollout.coordinator.state.EvaluationRun.num_resolved",
        property(lambda self: len(self.rewards) + len(self.excluded) + 1),
    )

    assert planted_is_caught()
