"""A learner on a bench: built from a run's configuration, fed from its recording, writing nowhere.

What it stores goes to a temporary folder. One process computes, whatever the run had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers.utils.logging import disable_progress_bar

from rollout.debug.recording import Recording, open_recording
from rollout.errors import SpecError
from rollout.learner import hash_chain as chain
from rollout.learner.build import build_parts
from rollout.learner.checkpoint import Progress, restore_anchor
from rollout.learner.context import LearnerContext
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import join
from rollout.learner.objectives.registry import build_settings
from rollout.learner.resume import Repeated, describe_changes, repeat_step
from rollout.learner.session import Session
from rollout.models.files import check_model
from rollout.protocol.messages import AnchorManifest, Cursor, StepRecord
from rollout.weights.digest import digest_tensors
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A recording, and a learner that can take its steps again."""

    recording: Recording
    parts: LearnerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """Where a replay begins, and whether that is what the run had there."""

    progress: Progress
    weights_equal: bool
    chain_equal: bool


@contextmanager
def open_bench(run_dir: Path) -> Iterator[Bench]:
    """A learner for the run in ``run_dir``. Sets this process's numerics to the run's.

    Raises SpecError or LedgerError when the folder holds no run that trains, or its model is gone.
    """
    with (
        open_recording(run_dir) as recording,
        TemporaryDirectory(prefix="rollout-debug-") as scratch,
    ):
        yield Bench(recording=recording, parts=_build(recording.config, Path(scratch)))


def _build(config: WorkerConfig, scratch: Path) -> LearnerContext:
    disable_progress_bar()
    check_model(Path(config.resolved.model_path), f"{config.spec.model.uri} of this run")
    exact = config.spec.numerics.mode == "Exact"
    apply_numerics(threads=config.threads, exact=exact)
    places = {"run_dir": str(scratch), "objects_dir": str(scratch / "objects")}
    moved = config.model_copy(update={"layout": config.layout.model_copy(update=places)})
    parallel = join(sharded=False)
    return build_parts(moved, build_settings(moved), parallel, Session(None, "debug", parallel))


def begin(bench: Bench, at: int) -> ReplayStart:
    """Stand at the newest anchor at or before step ``at``; for 0, or without one, at the initial model."""
    usable = [anchor for anchor in bench.recording.anchors() if anchor.step <= at]
    if at == 0 or not usable:
        return _begin_initially(bench)
    progress = _restore(bench, usable[-1])
    same = _digest(bench.parts) == progress.version.digest
    return ReplayStart(progress=progress, weights_equal=same, chain_equal=True)


def _begin_initially(bench: Bench) -> ReplayStart:
    recorded = bench.recording.ledger.initial()
    if recorded is None:
        raise SpecError("this run has no first version yet: its learner never came to train")
    version, committed_chain = recorded
    digest = _digest(bench.parts)
    link = chain.first_link(bench.parts.trainer.settings.spec_digest, digest)
    progress = Progress(
        lineage=0, step=0, chain=link, version=version, cursor=Cursor(next_ordinal=0)
    )
    return ReplayStart(
        progress=progress,
        weights_equal=digest == version.digest,
        chain_equal=link == committed_chain,
    )


def advance(bench: Bench, progress: Progress) -> tuple[Repeated, StepRecord]:
    """Take the committed step after ``progress`` again."""
    record = bench.recording.record(progress.step + 1)
    progress = follow(bench, progress, record.lineage)
    batch = bench.recording.batch(record.step)
    return repeat_step(bench.parts, progress, batch, record), record


def follow(bench: Bench, progress: Progress, lineage: int) -> Progress:
    """Where the run forked after ``progress``, go on from the fork's own anchor, if it is still there."""
    if lineage == progress.lineage:
        return progress
    for anchor in bench.recording.anchors():
        if (anchor.lineage, anchor.step) == (lineage, progress.step):
            return _restore(bench, anchor)
    return replace(progress, lineage=lineage)


def describe_runtime(bench: Bench) -> str:
    """How this runtime differs from the one of the newest anchor, as text; empty when it does not."""
    anchors = bench.recording.ledger.anchors()
    return describe_changes(anchors[-1], bench.parts.identity) if anchors else ""


def _restore(bench: Bench, anchor: AnchorManifest) -> Progress:
    return restore_anchor(anchor, bench.recording.objects, bench.parts.trainer)


def _digest(parts: LearnerContext) -> str:
    return digest_tensors(parts.trainer.policy.weights())
