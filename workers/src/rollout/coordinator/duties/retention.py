"""Deleting what nobody needs any more: anchors, weight versions, and the objects that were theirs alone.

Always in the run's turn, beside no commit and no anchor; what to delete is decided by ``rules.retention``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.references import find_best
from rollout.coordinator.rules.retention import (
    Needs,
    Retired,
    objects_in,
    objects_of,
    plan_anchor_retention,
    plan_body_removal,
    plan_collection,
    plan_retention,
)
from rollout.errors import StoreError
from rollout.ledger.records import AnchorManifest

log = logging.getLogger(__name__)

BODIES_MAX = 256
"""Most bodies that one transaction removes: a step that commits waits for it."""

REMOVALS_MAX = 16
"""Most such transactions of one look: other duties wait for it."""

COLLECTED_MAX = 1000
"""Most objects that one look collects: the learner waits for it. The next look takes the rest."""


async def retire(run: RunContext) -> None:
    """Delete anchors past ``keepLast`` and versions that nobody needs any more."""
    async with run.turn:
        gone = plan_anchor_retention(run.state.anchors, run.plan.snapshots.anchors_kept)
        gone = (*run.state.dead_anchors, *gone)
        if gone:
            await _delete_anchors(run, gone)
            run.state.dead_anchors = ()
        retired = _plan_retired(run)
        _note_evaluated(run, retired)
        for key in retired.versions:
            run.state.versions.pop(key, None)
        if retired.versions:
            # In turn with commits, which may name an object of equal weights that is about to go. Deleted
            # before it is written down: a crash in between only deletes nothing again.
            await asyncio.to_thread(_delete_objects, run, retired.objects)
            run.retired.extend(retired.versions)


async def remove_bodies(run: RunContext) -> None:
    """Have the ledger let go of bodies that no resume needs; some at a time, the next look takes more."""
    for _ in range(REMOVALS_MAX):
        async with run.turn:
            step = plan_body_removal(run.state.anchors, run.plan.storage.bodies_behind)
            if step is None or step <= run.removed_step:
                return
            done = await run.ledger.remove_bodies(step, BODIES_MAX)
        if not done.more:
            run.removed_step = step


def _plan_retired(run: RunContext) -> Retired:
    state, best = run.state, find_best(run)
    pinned = {(key[2], key[3]) for key in state.evaluations if _is_pinned(run, key)}
    if best is not None:
        pinned.add((best.result.lineage, best.result.step))
    if run.saving is not None:
        pinned.add(run.saving)
    needs = Needs(
        head=(state.lineage, state.step),
        staleness_max=run.plan.train.staleness_max,
        pinned=frozenset(pinned),
        anchors=tuple(state.anchors),
    )
    return plan_retention(state.versions.values(), needs)


def _is_pinned(run: RunContext, key: tuple[str, str, int, int]) -> bool:
    """Pending evaluations need their version's weights."""
    return run.state.evaluations[key].summary is None


def _note_evaluated(run: RunContext, retired: Retired) -> None:
    """A snapshot that is being made may name the weights of an evaluated version."""
    if run.guard is None:
        return
    evaluated = {(key[2], key[3]) for key in run.state.evaluations}
    gone = [run.state.versions[key] for key in retired.versions if key in evaluated]
    run.guard.note(objects_in(gone))


def _delete_objects(run: RunContext, objects: Collection[str]) -> None:
    if run.guard is not None:
        run.guard.delete(objects)
        return
    for digest in objects:
        run.store.delete(digest)


async def _delete_anchors(run: RunContext, gone: tuple[AnchorManifest, ...]) -> None:
    await run.ledger.delete_anchors([(anchor.lineage, anchor.step) for anchor in gone])
    keys = {(anchor.lineage, anchor.step) for anchor in gone}
    run.state.anchors = [a for a in run.state.anchors if (a.lineage, a.step) not in keys]
    free = objects_of(gone) - objects_of(run.state.anchors)
    free -= objects_in(run.state.versions.values())

    def delete() -> None:
        for anchor in gone:
            _delete_manifest(run.snapshots / f"{anchor.name}.json", anchor)
        _delete_objects(run, tuple(free))

    await asyncio.to_thread(delete)


def _delete_manifest(path: Path, anchor: AnchorManifest) -> None:
    """Delete an anchor's file unless another one has taken its name: once, names had no lineage."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=AnchorManifest)
    except FileNotFoundError:
        return
    except UNREADABLE as error:
        log.warning("manifest %s is left where it is, it cannot be read: %s", path, error)
        return
    if (found.lineage, found.step) == (anchor.lineage, anchor.step):
        path.unlink(missing_ok=True)


async def collect(run: RunContext) -> None:
    """Delete what the store has and nobody names: what killed learners stored, and never reported.

    Ask for it in the run's turn, while the learner waits for an answer: it alone stores objects before they
    are named, one call after the other, so at that moment none is on its way. A place that refuses to list
    or to delete keeps them.
    """
    outcome = run.state.outcome
    if outcome is not None and outcome.kind == "Succeeded":
        return  # its models may be on their way to whoever starts from them
    try:
        num = await asyncio.to_thread(_collect, run, _named(run))
    except StoreError as error:
        log.warning("objects that nobody names stay: %s", error)
    else:
        if num:
            log.info("collected num=%d objects that nobody named", num)


def _named(run: RunContext) -> set[str]:
    """Every object that somebody may still ask for."""
    state = run.state
    versions = [*state.versions.values(), *([state.version] if state.version else [])]
    anchored = objects_of((*state.anchors, *state.dead_anchors))
    handed = {f"blake3:{place.rpartition('/')[2]}" for place in state.handed}
    return objects_in(versions) | anchored | handed | run.pinned


def _collect(run: RunContext, named: set[str]) -> int:
    if run.guard is not None:
        named = named | run.guard.named()
    found = plan_collection(run.store.names(), named, COLLECTED_MAX)
    if run.guard is not None:
        run.guard.note(found)  # a snapshot's own, perhaps, of which the manifest is just removed
    _delete_objects(run, found)
    return len(found)
