"""What a coordinator decides: a scripted run against the real one, and its rules over plain data."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from configs import Place, build_config

sys.path.append(str(Path(__file__).parents[1] / "rollout" / "coordinator"))

from coordinator_kit import FakeActor, FakeLearner, HeldClock

from rollout.coordinator.build import build_plan, open_from_config
from rollout.coordinator.dispatcher import Coordinator
from rollout.coordinator.plan import EvaluationPlan, RunPlan
from rollout.coordinator.rows import build_rows
from rollout.coordinator.rules.autoscaling import ScaleState, StepShares, next_pace
from rollout.coordinator.rules.divergence import TRAIN_REWARD, judge_divergence
from rollout.coordinator.rules.drift import judge_drift, judge_retokenised
from rollout.coordinator.rules.evaluation import (
    EvaluationResult,
    check_gates,
    choose_best,
    plan_due,
)
from rollout.coordinator.rules.lengths import Lengths
from rollout.coordinator.rules.retention import plan_anchor_retention, plan_body_removal
from rollout.coordinator.rules.stragglers import Idle, WorkerLoad, deadline_seconds, plan_steals
from rollout.coordinator.server.in_process import serve_in_process
from rollout.ledger.records import AnchorManifest
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.messages import TaskProgress
from rollout.types import SamplingParams, WeightVersion
from rollout_api.worker import WorkerConfig

ROUNDS = 12
TELLING_SECONDS = 100.0
"""Between two rounds of the script, on the run's own clock."""


def observe_coordination(document: Mapping[str, Any], place: Place) -> Any:
    """Every task handed out, every batch and the end, while some groups fail and some rewards are all alike."""
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    base = build_config(document, place)
    paths = {"run_dir": str(folder), "ledger_path": str(folder / "ledger.db")}
    layout = base.layout.model_copy(update={**paths, "objects_dir": str(folder / "objects")})
    try:
        return _play(base.model_copy(update={"layout": layout}), folder)
    finally:
        shutil.rmtree(folder)


def _play(config: WorkerConfig, folder: Path) -> list[Any]:
    held: list[Coordinator] = []

    async def opened() -> Coordinator:
        held.append(await open_from_config(config))
        held[0].run.clock = HeldClock(now=1000.0)
        return held[0]

    seen: list[Any] = []
    with serve_in_process(opened) as client:
        learner = FakeLearner(client, FilesystemStore(folder / "objects"))
        actor = FakeActor(client, reward=_reward)
        for _ in range(ROUNDS):
            seen += _answer(actor)
            batch = learner.ask()
            seen.append(_told(batch))
            if batch.stop is not None:
                break
            if batch.waiting is None:
                learner.commit(batch)
            held[0].run.clock.now += TELLING_SECONDS
        told = m.BatchRequest(step=learner.step + 1, told_seconds=30.0)
        seen.append(learner.call(routes.BATCH, told).save_seconds)
        status = client.status()
        seen.append((status.step, status.steps_max, status.dispositions))
    return seen


def _reward(task: m.Task, sample: int) -> float:
    """Every third group has one reward for all."""
    return 1.0 if task.ordinal % 3 == 0 else float(sample % 2)


def _answer(actor: FakeActor) -> list[Any]:
    tasks = actor.claim().tasks
    for task in tasks:
        if task.evaluation is None and task.ordinal == 4:
            actor.fail(task)
        elif task.evaluation is None and task.ordinal == 5:
            actor.submit(_partly(actor.play(task)))
        elif task.evaluation is None and task.ordinal == 7 and task.epoch:
            continue  # It never comes back.
        else:
            actor.submit(actor.play(task))
    return [msgspec.json.encode(msgspec.structs.replace(one, task_id="")).decode() for one in tasks]


def _partly(result: m.TaskResult) -> m.TaskResult:
    """One of its samples is lost to infrastructure each time."""
    lost = m.Failure(kind="infrastructure", message="a judge was away")
    return msgspec.structs.replace(result, trajectories=result.trajectories[1:], failure=lost)


def _told(batch: m.Batch) -> Any:
    rows = [row.row for row in (*batch.rows, *batch.held_out)]
    groups = [[one.reward for one in group.trajectories] for group in batch.groups]
    cursor = None if batch.cursor is None else (batch.cursor.next_ordinal, batch.cursor.exhausted)
    return (batch.step, groups, rows, batch.stop, batch.num_excluded, cursor)


# -- rules over plain data ------------------------------------------------------------------------------


def observe_rules(document: Mapping[str, Any], place: Place) -> Any:
    """What the rules say of the same history: which evaluations are due, what is kept, moved, warned of."""
    config = build_config(document, place)
    plan = build_plan(config, build_rows(config))
    return {
        "due": [_due(plan, step) for step in range(8)],
        "best": _best(plan),
        "gates": [check_gates(plan.evaluations, _results(plan), step) for step in (2, 3)],
        "retention": [
            one.step for one in plan_anchor_retention(_anchors(), plan.snapshots.anchors_kept)
        ],
        "bodies": plan_body_removal(_anchors(), plan.storage.bodies_behind),
        "anchors": [
            step for step in range(1, 80) if step % (plan.snapshots.anchor_every_steps or 1) == 0
        ],
        "drift": [_drift(plan, value) for value in (0.01, 0.06, 0.2, 0.6, 0.95)],
        "pace": None if plan.actors is None else _paces(plan),
        "moves": None if plan.train.stragglers is None else _moves(plan),
        "measured": [plan.train.measures_after(step) for step in range(1, 4)],
        "saves": plan.snapshots.saves_on_notice,
    }


def _due(plan: RunPlan, step: int) -> list[Any]:
    return [
        (one.name, one.split, one.num_prompts, one.samples_per_prompt, one.sampling)
        for one in plan_due(plan.evaluations, step, finished=step == 7)
    ]


def _results(plan: RunPlan) -> list[EvaluationResult]:
    return [
        EvaluationResult(
            name=one.name,
            split=one.split,
            lineage=0,
            step=step,
            summary={
                "accuracy": {"value": 0.5 + step / 100, "low": 0.4, "high": 0.7},
                "pass@2": {"value": 0.9 - step / 100, "low": 0.1, "high": 0.99},
            },
        )
        for one in plan.evaluations
        for step in (1, 2, 3)
    ]


def _best(plan: RunPlan) -> Any:
    best = choose_best(plan.evaluations, _results(plan))
    return None if best is None else (best.result.step, best.metric, best.value)


def _anchors() -> list[AnchorManifest]:
    return [
        AnchorManifest(
            name=f"step-{step}",
            lineage=0,
            step=step,
            chain="",
            version=WeightVersion(lineage=0, step=step, digest="", object=""),
            objects={},
        )
        for step in range(1, 9)
    ]


def _drift(plan: RunPlan, value: float) -> list[Any]:
    recent = [{"mismatch_kl": value, "retokenised_share": value}] * 3
    found = (
        judge_drift(recent, plan.limits.drift),
        judge_retokenised(recent, plan.limits.retokenised),
    )
    return [*(one.level for one in found), _parted(plan)]


def _parted(plan: RunPlan) -> str:
    """Of a reward that rose while the selecting evaluation fell."""
    chooses = EvaluationPlan(
        name="choose",
        split="selection",
        num_prompts=1,
        samples_per_prompt=1,
        sampling=SamplingParams(max_new_tokens=1),
        selects=True,
    )
    results = [
        EvaluationResult(
            name="choose",
            split="selection",
            lineage=0,
            step=step,
            summary={
                "accuracy": {"value": value, "low": value - 0.05, "high": value + 0.05},
                TRAIN_REWARD: float(step),
            },
        )
        for step, value in enumerate((0.9, 0.1))
    ]
    stops = plan.limits.reward_divergence_stops
    return judge_divergence([chooses], results, stops=stops).level


def _paces(plan: RunPlan) -> Sequence[int]:
    assert plan.actors is not None
    seen = []
    for waits in ((0.9, 0.0), (0.0, 0.9)):
        pace = ScaleState(wanted=plan.actors.start)
        for _ in range(60):
            shares = StepShares(
                num_actors=pace.wanted, learner_waits=waits[0], actors_wait=waits[1]
            )
            pace = next_pace(pace, plan.actors, shares)
        seen.append(pace.wanted)
    return seen


def _moves(plan: RunPlan) -> Any:
    assert plan.train.stragglers is not None
    lengths = Lengths([100] * 90 + [1000] * 10)
    tasks = [TaskProgress(task_id=f"t{n}", num_queued=4, prompt_tokens=50 * n) for n in range(4)]
    load = WorkerLoad(
        worker="a",
        pace=50.0,
        tasks=(TaskProgress(task_id="t", running=(10, 10), prompt_tokens=5), *tasks),
    )
    margin = plan.train.stragglers.steal_margin_seconds
    moved = [
        plan_steals([load], [Idle(worker="b", pace=pace)], lengths, margin)
        for pace in (20.0, 30.0, 40.0, 50.0, 60.0, 80.0)
    ]
    return moved, deadline_seconds(50.0, lengths, plan.train.stragglers.deadline_factor)
