"""How a learner begins: the newest anchor, then the committed steps after it, again.

A replayed step must meet the committed version digest and chain value. Where it does not (hardware that
does not repeat itself, another runtime), the run goes on in a new lineage and is graded logical.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from rollout.errors import RunFailed, SpecError
from rollout.learner import hash_chain as chain
from rollout.learner.anchoring import is_stored, save_anchor
from rollout.learner.batch_step import StepResult, take_step
from rollout.learner.checkpoint import Progress, restore_anchor
from rollout.learner.context import LearnerContext
from rollout.learner.objectives.plan import decode_plan
from rollout.learner.publish import publish
from rollout.learner.state_digest import seal_step
from rollout.protocol import routes
from rollout.protocol.messages import (
    AnchorManifest,
    Batch,
    Cursor,
    Fork,
    LearnerStarted,
    PublishInitial,
    ReplayRequest,
    StepRecord,
    StoredAgain,
)
from rollout.types import WeightVersion
from rollout.weights.publisher import Stored, store_whole

log = logging.getLogger(__name__)

LOGICAL = "logical"


def resume(
    parts: LearnerContext,
    started: LearnerStarted,
    wall_clock: Callable[[], float],
    held: Progress | None = None,
) -> Progress:
    """Bring the trainer to the last committed step, or to a new lineage; call on every rank.

    ``held``: the trainer has the state of this committed step already. Raises SpecError when the model's files are not the ones the run began with, RunFailed when anchor
    and ledger contradict each other.
    """
    progress = _begin(parts, started) if held is None else held
    for record in started.replay:
        if record.step <= progress.step:
            continue
        progress, forked = _replay(parts, progress, record)
        if forked:
            save_anchor(parts, progress, wall_clock)
            return progress
    if progress.step != started.committed_step:
        raise RunFailed(
            f"the ledger's last step is {started.committed_step}, but anchor and replay end at"
            f" {progress.step}: recorded batches are missing; restore the ledger or start a new run"
        )
    if parts.stores_each_step and not is_stored(parts, progress.version):
        progress = store_again(parts, progress)
    changed = _changed_identity(parts, started)
    if changed and parts.trainer.settings.exact:
        progress = _fork(parts, progress, progress.version, f"the runtime changed: {changed}")
        save_anchor(parts, progress, wall_clock)
    return progress


def _begin(parts: LearnerContext, started: LearnerStarted) -> Progress:
    trainer = parts.trainer
    if started.anchor is not None:
        progress = restore_anchor(started.anchor, parts.store, trainer)
        log.info("anchor restored name=%s", started.anchor.name)
        return replace(progress, lineage=started.lineage)
    weights = trainer.policy.weights()

    def store() -> WeightVersion:
        return parts.parallel.on_main(
            lambda: publish(weights, parts.store, lineage=started.lineage, step=0), WeightVersion
        )

    version = store()
    link = chain.first_link(trainer.settings.spec_digest, version.digest)
    if started.initial is None:
        first = PublishInitial(version=version, chain=link)
        parts.session.offer(
            routes.PUBLISH_INITIAL, first, lambda: msgspec.structs.replace(first, version=store())
        )
    elif started.initial.digest != version.digest:
        raise SpecError(
            f"spec.model: the run began with weights {started.initial.digest}, the model's files now"
            f" hold {version.digest}; put the old files back or start a new run"
        )
    return Progress(
        lineage=started.lineage,
        step=0,
        chain=link,
        version=started.initial or version,
        cursor=Cursor(next_ordinal=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A committed step taken again, what it came to, and whether weights and chain are the committed ones.

    ``progress`` stands at the step, on the chain as it was computed now.
    """

    progress: Progress
    done: StepResult
    weights_equal: bool
    chain_equal: bool

    @property
    def equal(self) -> bool:
        """Whether everything came out as it was committed."""
        return self.weights_equal and self.chain_equal


def repeat_step(
    parts: LearnerContext, progress: Progress, batch: Batch, record: StepRecord
) -> Repeated:
    """Take the committed step after ``progress`` again, by its recorded plan; call on every rank."""
    done = take_step(parts, progress, batch, decode_plan(record.plan))
    sealed = seal_step(parts.trainer, None, progress.chain, done)
    reached = replace(
        progress, step=done.step, chain=sealed.chain, version=record.version, cursor=done.cursor
    )
    return Repeated(
        progress=reached,
        done=done,
        weights_equal=sealed.digest == record.version.digest,
        chain_equal=sealed.chain == record.chain,
    )


def _replay(parts: LearnerContext, progress: Progress, record: StepRecord) -> tuple[Progress, bool]:
    """Take a committed step again; the flag says that it came out differently and a lineage was opened."""
    recorded = parts.session.call(routes.REPLAY, ReplayRequest(step=record.step))
    again = repeat_step(parts, progress, recorded, record)
    step, reached = record.step, again.progress
    if again.equal:
        return reached, False
    log.warning("replay differs step=%d expected=%s got=%s", step, record.chain, reached.chain)
    weights = parts.trainer.policy.weights()
    version = parts.parallel.on_main(
        lambda: publish(weights, parts.store, lineage=progress.lineage, step=step), WeightVersion
    )
    return _fork(parts, reached, version, f"replay of step {step} met another digest"), True


def store_again(parts: LearnerContext, progress: Progress) -> Progress:
    """Store the version whole, and tell the coordinator where; call on every rank. Raises StoreError."""

    def store() -> StoredAgain:
        return StoredAgain(version=keep_whole(parts, progress.version))

    told, _ = parts.session.offer(routes.STORED_AGAIN, store(), store)
    log.warning("stored again step=%d object=%s", progress.step, told.version.object)
    return replace(progress, version=told.version)


def keep_whole(parts: LearnerContext, version: WeightVersion) -> WeightVersion:
    """The version of the weights that the policy has now, stored whole; call on every rank. Raises StoreError."""
    weights = parts.trainer.policy.weights()
    stored = parts.parallel.on_main(lambda: store_whole(parts.store, weights), Stored)
    if parts.publisher is not None:
        parts.publisher.forget()
    return replace(version, object=stored.object, bases=stored.bases)


def _fork(
    parts: LearnerContext, progress: Progress, version: WeightVersion, reason: str
) -> Progress:
    fork = Fork(step=progress.step, version=version, chain=progress.chain, reason=reason)
    fork, forked = parts.session.offer(
        routes.FORK, fork, lambda: msgspec.structs.replace(fork, version=keep_whole(parts, version))
    )
    lineage = forked.lineage
    log.warning("new lineage lineage=%d step=%d reason=%s", lineage, progress.step, reason)
    version = replace(fork.version, lineage=lineage)
    return replace(progress, lineage=lineage, version=version, grade=LOGICAL)


def _changed_identity(parts: LearnerContext, started: LearnerStarted) -> str:
    if started.anchor is None:
        return ""
    return describe_changes(started.anchor, parts.identity)


def describe_changes(anchor: AnchorManifest, identity: Mapping[str, str]) -> str:
    """What of the runtime is not as the anchor recorded it, as text; empty when all is."""
    before = anchor.state.get("identity", {})
    names = sorted(name for name in identity if before.get(name) != identity[name])
    return ", ".join(f"{name} {before.get(name)} -> {identity[name]}" for name in names)
