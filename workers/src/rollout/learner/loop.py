"""The learner's loop: start -> restore and replay -> [batch -> step -> publish -> commit -> anchor]* -> end.

Thin on purpose: what a step computes is ``train_step``, what survives is ``checkpoint``, what a run may claim is
``resume``. Killed anywhere, the next incarnation goes on to the same chain: nothing is announced before
it is committed, nothing committed before it is stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import msgspec

from rollout.errors import RunFailed
from rollout.learner import resume
from rollout.learner.anchoring import Anchoring
from rollout.learner.batch_step import StepResult, take_step
from rollout.learner.checkpoint import Progress
from rollout.learner.context import LearnerContext, in_turn
from rollout.learner.model.adapter import export_adapter
from rollout.learner.objectives.plan import encode_plan
from rollout.learner.state_digest import seal_step
from rollout.protocol import routes
from rollout.protocol.messages import Batch, Commit, LearnerStarted
from rollout.types import WeightVersion

log = logging.getLogger(__name__)


class Phases:
    """Seconds since the last step was reported, by what they went into."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mark = clock()
        self._seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """The time since the last call went into ``name``."""
        now = self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """What was collected; starts afresh."""
        seconds, self._seconds = self._seconds, {}
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the loop asks of its surroundings: the time, and whether it was told to go.

    ``told_seconds``: how long it may still save then; None: it was not told. ``stands_still``: its process is to be imaged.
    """

    clock: Callable[[], float] = time.perf_counter
    wall_clock: Callable[[], float] = time.time
    told_seconds: Callable[[], float | None] = lambda: None
    stands_still: Callable[[], bool] = lambda: False
    stepped: Callable[[int, str], None] = lambda _step, _state: None


def run_learner(
    parts: LearnerContext, started: LearnerStarted, watch: Watch, held: Progress | None = None
) -> str | Progress:
    """Train until the coordinator says stop; returns its reason. An anchor is saved on the way out, if there is time.

    Where the learner is to stand still it returns the step that it has reached, whose anchor is saved. ``held``: the committed step whose state the trainer has already. Raises RunFailed when the run cannot go on, CoordinatorError and StoreError when others failed.
    """
    phases = Phases(watch.clock)
    with in_turn(parts.turn, parts.parallel):
        progress = resume.resume(parts, started, watch.wall_clock, held)
    anchored = -1 if started.anchor is None else started.anchor.step
    phases.end("resume")
    with Anchoring(parts, anchored, watch.clock, watch.wall_clock) as anchoring:
        return _train(parts, progress, watch, phases, anchoring)


def _train(
    parts: LearnerContext,
    progress: Progress,
    watch: Watch,
    phases: Phases,
    anchoring: Anchoring,
) -> str | Progress:
    while True:
        if watch.stands_still():
            anchoring.finish(progress, None)
            return progress
        watch.stepped(progress.step, "waiting for a batch")
        batch = parts.session.next_batch(progress.step + 1, watch.told_seconds, anchoring.poll)
        phases.end("wait")
        if batch.stop is not None:
            anchoring.finish(progress, batch.save_seconds)
            if batch.save_seconds is None:
                _export(parts)
            return batch.stop
        if batch.store_again:
            watch.stepped(progress.step, "storing the version again")
            progress = resume.store_again(parts, progress)
            continue
        anchoring.keep_near(progress.step + 1, batch.replay_steps_max)
        phases.end("anchor")
        watch.stepped(progress.step + 1, "training")
        with in_turn(parts.turn, parts.parallel):
            progress = _step(parts, progress, batch, phases)
        every = batch.anchor_every_steps or parts.trainer.settings.anchor_every_steps
        if progress.step % every == 0:
            anchoring.begin(progress)
            phases.end("anchor")


def _export(parts: LearnerContext) -> None:
    """Beside the merged weights, leave an adapter as PEFT loads it: ``adapter/`` in the run's folder."""
    policy, lora = parts.trainer.policy, parts.trainer.settings.lora
    if lora is None:
        return
    masters, folder = policy.full_masters(), parts.place.snapshots_dir.parent / "adapter"
    parts.parallel.on_main(lambda: export_adapter(policy.model, masters, lora, folder), NoneType)
    log.info("adapter exported folder=%s", folder)


def _step(parts: LearnerContext, progress: Progress, batch: Batch, phases: Phases) -> Progress:
    """Take one step, name its weights and store them for whoever will load them, commit it."""
    done = take_step(parts, progress, batch, plan=None)
    phases.end("train")
    sealed = seal_step(parts.trainer, parts.keep_weights, progress.chain, done)
    phases.end("publish")
    reached = replace(
        progress,
        step=done.step,
        chain=sealed.chain,
        version=WeightVersion(
            lineage=progress.lineage,
            step=done.step,
            digest=sealed.digest,
            object=sealed.stored.object,
            bases=sealed.stored.bases,
        ),
        cursor=done.cursor,
    )
    reached = _commit(parts, reached, done, phases.take())
    phases.end("commit")
    return reached


def _commit(
    parts: LearnerContext,
    reached: Progress,
    done: StepResult,
    seconds: dict[str, float],
) -> Progress:
    step = Commit(
        step=done.step,
        lineage=reached.lineage,
        consumed=done.consumed,
        filtered=done.filtered,
        plan=encode_plan(done.plan),
        version=reached.version,
        chain=reached.chain,
        cursor=done.cursor,
        metrics=_with_rates({**done.metrics, **_checked(parts)}, seconds),
        phase_seconds=seconds,
    )
    step, answer = parts.session.offer(
        routes.COMMIT,
        step,
        lambda: msgspec.structs.replace(step, version=resume.keep_whole(parts, reached.version)),
    )
    if not answer.accepted:
        raise RunFailed(
            f"step {done.step}: the coordinator did not accept the commit; see logs/coordinator.log"
        )
    loss = done.metrics["loss"]
    log.info("step committed step=%d chain=%s loss=%.6g", done.step, reached.chain, loss)
    return replace(reached, version=step.version)


def _checked(parts: LearnerContext) -> dict[str, float]:
    """How far packed rows were from the model's plain forward when this process started, and the limit."""
    if parts.check is None:
        return {}
    return {
        "forward_gap_nats": parts.check.gap_nats,
        "forward_gap_limit_nats": parts.check.limit_nats,
    }


def _with_rates(metrics: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """Add throughput. ``commit`` and ``anchor`` in ``seconds`` are those of the step before."""
    wall = max(sum(seconds.values()) - seconds.get("resume", 0.0), 1e-9)
    train = max(seconds.get("train", 0.0), 1e-9)
    return {
        **metrics,
        "step_seconds": wall,
        "tokens_per_second": metrics["num_tokens"] / wall,
        "learner_tokens_per_second": metrics["num_tokens"] * metrics["num_epochs"] / train,
        "phase_seconds": seconds,
    }
