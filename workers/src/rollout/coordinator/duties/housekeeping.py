"""What happens beside the steps, off everybody's way: results, references, retention, trackers, the end.

One loop, woken by changes. Each duty looks at the state and does what is missing, so it does not
matter which change woke it, how often, or what a former coordinator had begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from rollout.coordinator.context import RunContext, wait_for
from rollout.coordinator.duties.announcements import announce
from rollout.coordinator.duties.batch_results import finish_batch
from rollout.coordinator.duties.model_export import hand_over
from rollout.coordinator.duties.references import find_best, write_references
from rollout.coordinator.duties.retention import remove_bodies, retire
from rollout.coordinator.duties.tracking import tell
from rollout.coordinator.memory.pruning import prune_memory
from rollout.coordinator.rules.divergence import (
    TRAIN_REWARD,
    judge_divergence,
    mean_train_reward,
)
from rollout.coordinator.rules.evaluation import check_gates, plan_final_reports
from rollout.coordinator.state import EvaluationRun
from rollout.errors import LedgerError, LedgerFull, LedgerSuperseded, LedgerUnreachable, StoreError
from rollout.evaluations.metrics import measure
from rollout.ledger.records import Admission

log = logging.getLogger(__name__)

NOTHING_MEASURED = "NothingMeasured"

LOOK_AGAIN_SECONDS = 5.0
"""The loop also looks without being woken."""

SETTLE_SECONDS = 0.1
"""Wake-ups closer than this are one: a step of a tiny model must not pay for housekeeping."""


async def keep(run: RunContext) -> None:
    """Do the duties for ever. An error of one is logged and tried again with the next change."""
    while True:
        ticket = run.changed.ticket()
        for duty in DUTIES:
            await _attempt(run, duty)
        await wait_for(ticket, LOOK_AGAIN_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)


async def _attempt(run: RunContext, duty: Callable[[RunContext], Awaitable[None]]) -> None:
    try:
        await duty(run)
    except LedgerUnreachable as error:
        log.warning("duty=%s waits: %s", duty.__name__, error)
    except LedgerFull as error:
        await run.meet_full_disk(error)
    except LedgerSuperseded:
        run.superseded.set()
    except (LedgerError, StoreError) as error:
        log.error("duty=%s failed: %s", duty.__name__, error)  # noqa: TRY400 - expected
        await run.end("Failed", type(error).__name__, str(error))


async def finish_evaluations(run: RunContext) -> None:
    """Summarise evaluations whose prompts are all back."""
    for evaluation in run.state.pending_evaluations():
        if evaluation.num_resolved < evaluation.num_tasks:
            continue
        summary = {
            **_summarise(run, evaluation),
            **await _measure(run, evaluation),
            **_train_reward(run, evaluation),
        }
        await run.ledger.finish_evaluation(*evaluation.key, summary)
        evaluation.summary = summary
        evaluation.rewards.clear()
        evaluation.lengths.clear()
        log.info("evaluation done key=%s summary=%s", evaluation.key, summary)
        run.wake()
        await _stop_when_parted(run)


def _summarise(run: RunContext, evaluation: EvaluationRun) -> dict[str, Any]:
    ordered = [evaluation.rewards[position] for position in sorted(evaluation.rewards)]
    lengths = [n for values in evaluation.lengths.values() for n in values]
    summary = dict(run.summarise(ordered)) if ordered else {}
    summary["num_prompts"] = len(ordered)
    summary["num_excluded"] = len(evaluation.excluded)
    summary["num_tokens"] = sum(lengths)
    summary["tokens_mean"] = sum(lengths) / len(lengths) if lengths else 0.0
    return summary


def _train_reward(run: RunContext, evaluation: EvaluationRun) -> dict[str, Any]:
    """What training was paid on the way to a version that may be selected."""
    selecting = {(plan.name, plan.split) for plan in run.plan.evaluations if plan.selects}
    if evaluation.key[:2] not in selecting:
        return {}
    reward = mean_train_reward(run.state.recent, evaluation.key[3])
    return {} if reward is None else {TRAIN_REWARD: reward}


async def _stop_when_parted(run: RunContext) -> None:
    """Save and stop where reward and evaluation have parted, and the manifest asks for it."""
    found = judge_divergence(
        run.plan.evaluations,
        run.state.results(),
        stops=run.plan.limits.reward_divergence_stops,
    )
    if found.level == "stop":
        await run.stop(found.message)


async def _measure(run: RunContext, evaluation: EvaluationRun) -> dict[str, Any]:
    """The metrics of its suite, from what the ledger has of its answers."""
    name, split, lineage, step = evaluation.key
    known = (plan for plan in run.plan.evaluations if (plan.name, plan.split) == (name, split))
    metrics = next((plan.metrics for plan in known), ())
    if not metrics:
        return {}
    rewards = await run.ledger.evaluation_rewards(name, split, lineage, step)
    return dict(measure(metrics, list(rewards.values())))


async def track(run: RunContext) -> None:
    """Give every committed step to the trackers once, in order, with the evaluations of its version.

    A step is held back while an evaluation of it, or of an earlier one, is under way.
    """
    state = run.state
    pending = [key[3] for key in state.evaluations if state.evaluations[key].summary is None]
    last = min([state.step, *(step - 1 for step in pending)])
    if state.tracked_step < last:
        records = await run.ledger.metrics_after(max(0, state.tracked_step))
        if state.tracked_step < 0:
            records = ((0, 0, {"step": 0, "lineage": 0}), *records)
        due = [(step, {**found, **_evaluated(run, step)}) for _, step, found in records]
        due = [item for item in due if item[0] <= last]
        async with run.tracking:
            await asyncio.to_thread(_log, run, due)
        state.tracked_step = last


def _evaluated(run: RunContext, step: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # Of a fork's base, its own version's come last: they take the place of the parent's.
    for result in sorted(run.state.results(), key=lambda one: one.lineage):
        if result.step == step:
            prefix = f"eval/{result.name}/{result.split}"
            found |= {f"{prefix}/{name}": value for name, value in _flat(result.summary)}
    return found


def _flat(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in summary.items():
        if isinstance(value, Mapping):
            flat.extend((f"{name}/{part}", number) for part, number in value.items())
        else:
            flat.append((name, value))
    return flat


def _log(run: RunContext, due: list[tuple[int, dict[str, Any]]]) -> None:
    for step, metrics in due:
        for index, tracker in enumerate(run.trackers):
            tell(run, index, "steps", partial(tracker.log, step, metrics))


async def finish(run: RunContext) -> None:
    """Let the run end well: all steps, all evaluations, the learner's last anchor."""
    state = run.state
    if state.outcome is not None:
        return
    if state.stopping is not None:
        await _finish_stopped(run)
    elif run.plan.infer is not None:
        await finish_batch(run)
    elif run.is_last_step_done() and await _reports_are_in(run) and _learner_is_done(run):
        await _close_books(run)
        await settle(run)
        await _judge(run)


async def _judge(run: RunContext) -> None:
    """End the run as its gates have it; one that only warns is told in the log and in the outcome."""
    missed = check_gates(run.plan.evaluations, run.state.results(), run.state.step)
    failed = [gate.message for gate in missed if gate.fails]
    if failed:
        await run.end("Failed", "GateFailed", "; ".join(failed))
        return
    if not run.plan.trains and (empty := _unanswered(run)):
        await run.end("Failed", NOTHING_MEASURED, f"no prompt was answered of {', '.join(empty)}")
        return
    warned = "".join(f"; gate missed: {gate.message}" for gate in missed)
    if warned:
        log.warning("gates missed%s", warned)
    done = f"{run.state.step} steps committed" if run.plan.trains else _count_measured(run)
    await run.end("Succeeded", "Finished", f"{done}{warned}")


def _unanswered(run: RunContext) -> list[str]:
    return [one.name for one in run.state.results() if not one.summary.get("num_prompts")]


def _count_measured(run: RunContext) -> str:
    results = run.state.results()
    num_prompts = sum(one.summary["num_prompts"] for one in results)
    return f"{num_prompts} prompts of {len(results)} evaluation{'s'[: len(results) != 1]} measured"


async def settle(run: RunContext) -> None:
    """Leave nothing for a next life: whoever sees the end also finds the references and the metrics."""
    await write_references(run)
    await announce(run)
    await retire(run)
    await remove_bodies(run)
    await track(run)
    await run.ledger.set_tracked(run.state.tracked_step)


async def _finish_stopped(run: RunContext) -> None:
    now = run.clock()
    working = [
        worker.name
        for worker in run.state.workers.values()
        if worker.outcome is None and now - worker.seen_at < run.plan.lease_seconds
    ]
    # Who was told by an earlier life may be saving an anchor, and has not spoken to this one yet.
    awaited = run.inherits_stop and now - run.started_at < run.plan.lease_seconds
    if not working and not (awaited and not run.state.workers):
        await settle(run)
        await run.end("Stopped", "Stopped", run.state.stopping or "")


async def _reports_are_in(run: RunContext) -> bool:
    if run.state.pending_evaluations():
        return False
    more = plan_final_reports(run.plan.evaluations, find_best(run), run.state.evaluations)
    if not more:
        return True
    admission = Admission(next_admitted=run.state.next_admitted, evaluations=more)
    await run.ledger.admit(admission)
    run.state.admit(admission)
    run.work.beat()
    return False


def _learner_is_done(run: RunContext) -> bool:
    state = run.state
    if not run.plan.trains:
        return state.version is not None
    head = (state.lineage, state.step)
    anchored = any((anchor.lineage, anchor.step) == head for anchor in state.anchors)
    learners = (worker for worker in state.workers.values() if worker.role == "learner")
    return anchored or any(worker.outcome == "succeeded" for worker in learners)


async def _close_books(run: RunContext) -> None:
    """What was admitted and never taken is surplus: the run has ended."""
    left = tuple(
        one
        for group in run.state.groups.values()
        for one in group.dispose("surplus", "the run ended")
    )
    if left:
        await run.ledger.dispose(run.state.step, left)
        run.state.dispositions.update(one.kind for one in left)
        run.state.take_groups(run.state.groups)
        run.state.leases.clear()


DUTIES: tuple[Callable[[RunContext], Awaitable[None]], ...] = (
    finish_evaluations,
    write_references,
    announce,
    retire,
    remove_bodies,
    prune_memory,
    track,
    finish,
    announce,
    hand_over,
)
