"""Rows that are never learned from are measured after a step, and leave no trace in what is learned."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from plans import changed, run_plan

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.coordinator.plan import HeldOutPlan
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.validation import measure
from rollout.protocol import messages as m
from rollout.types import SamplingParams

DPO = PairSettings(loss=DpoSettings(), max_length=32)
ALGORITHMS = {
    "sft": SftSettings(loss="CompletionOnly", packing=True, max_length=32),
    "dpo": DPO,
    "kto": LabelSettings(loss=KtoSettings(), max_length=32),
    "rm": RewardSettings(max_length=32, seed=1),
}


def rows(start: int, count: int) -> tuple[m.DataRow, ...]:
    return tuple(
        m.DataRow(
            ordinal=n,
            row={
                "messages": [{"role": "user", "content": f"{n}+{n}="}],
                "answer": str(2 * n),
                "chosen": str(2 * n),
                "rejected": f"{2 * n + 1}?",
                "label": n % 2 == 0,
            },
        )
        for n in range(start, start + count)
    )


def batch(step: int, *, held_out: bool) -> m.Batch:
    found = rows(step * 4, 4)
    return m.Batch(
        step=step,
        ids=tuple((f"r/{row.ordinal}",) for row in found),
        rows=found,
        held_out=rows(900, 6) if held_out and step % 2 == 0 else (),
        cursor=m.Cursor(next_ordinal=step * 4),
    )


def world_of(world, name):
    return replace(world, settings=replace(world.settings, algorithm=ALGORITHMS[name]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_measuring_changes_nothing_of_the_run(world, coordinator, name, tmp_path) -> None:
    quiet, loud = (
        coordinator(steps_max=4, make=lambda step, on=on: batch(step, held_out=on))
        for on in (False, True)
    )
    chosen = world_of(world, name)
    replace(chosen, folder=tmp_path / "quiet").run(quiet)
    replace(chosen, folder=tmp_path / "loud").run(loud)
    assert loud.chain() == quiet.chain()
    measured = [any(key.startswith("eval_") for key in line) for line in loud.metrics]
    assert measured == [False, True, False, True]
    assert loud.metrics[3]["eval_num_sequences"] == 6
    assert math.isfinite(loud.metrics[3]["eval_loss"])
    if name in ("dpo", "rm"):
        assert 0 <= loud.metrics[3]["eval_preference_accuracy"] <= 1


def test_before_the_first_update_dpo_pays_log_two(world, coordinator) -> None:
    parts = world_of(world, "dpo").parts(coordinator(steps_max=1))
    found = measure(parts, rows(0, 5))
    assert found["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert found["eval_num_sequences"] == 5


def test_held_out_rows_that_are_all_too_long_are_none(world, coordinator) -> None:
    short = replace(DPO, max_length=2)
    settings = replace(world.settings, algorithm=short)
    parts = replace(world, settings=settings).parts(coordinator(steps_max=1))
    assert measure(parts, rows(0, 3)) == {"eval_loss": 0, "eval_num_sequences": 0}


@pytest.mark.parametrize(
    ("every", "steps_max", "expected"), [(2, 5, [2, 4, 5]), (10, 3, [3]), (1, 2, [1, 2])]
)
def test_it_is_measured_every_so_many_steps_and_after_the_last(every, steps_max, expected) -> None:
    plan = run_plan(
        name="r",
        uid="u",
        tasks_per_step=4,
        num_samples=1,
        sampling=SamplingParams(max_new_tokens=1),
        offline=True,
        steps_max=steps_max,
        held_out=HeldOutPlan(num_rows=6, every_steps=every),
    )
    steps = range(1, steps_max + 1)
    assert [step for step in steps if plan.train.measures_after(step)] == expected
    assert not any(changed(plan, held_out=None).train.measures_after(step) for step in steps)


def test_an_older_batch_without_held_out_rows_is_read() -> None:
    body = msgspec.msgpack.encode({"step": 1, "ids": [], "rows": []})
    assert msgspec.msgpack.decode(body, type=m.Batch).held_out == ()
