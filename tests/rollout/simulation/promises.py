"""What must hold in the ledger's file, whatever happened: read with plain SQL, by nobody's own account."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from books import check_books, open_ends
from hash_learner import begin, take_step
from scenario import Scenario
from workers import draw_tokens, length_of

from rollout.codec import name_trajectory
from rollout.coordinator.rules.retention import plan_body_removal
from rollout.ledger.sqlite.reader import LedgerReader

OPENING_SECONDS = 0.5
"""Longest time between a coordinator's re-arming of the leases and its first answer."""


def check_always(
    file: Path, scenario: Scenario, lives: list[float], *, is_whole: bool = True
) -> list[str]:
    """The promises that hold at every moment. ``lives``: when coordinators began, where clocks are even.

    Of a ledger that is not whole the first steps' rows are another run's: only their sums are here.
    """
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tx:
        books = check_books(file, scenario.plan.train.staleness_max)
        return [
            *(one for one in books if is_whole or not one.startswith("tallies differ")),
            *_armed_again(tx, scenario.plan.lease_seconds, lives),
        ]


def _armed_again(tx: sqlite3.Connection, lease_seconds: float, lives: list[float]) -> list[str]:
    """No lease runs out because the coordinator was down: each has a full term after its start."""
    return [
        f"{task}: its lease ran out {ended - began:.1f} s after the coordinator came back"
        for began in lives
        for task, ended in tx.execute(
            "SELECT task_id, ended_at FROM attempts WHERE ending = 'expired' AND ended_at > ?"
            " AND ended_at < ?",
            (began, began + lease_seconds - OPENING_SECONDS),
        )
    ]


def check_end(file: Path, world: Any) -> list[str]:
    """The promises of a run that has ended well, and what its workers were told."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tx:
        found = open_ends(tx)
    with LedgerReader(file) as ledger:
        found += _told(ledger, world)
        found += _anchors_are_whole(ledger, world)
        found += _lets_go(ledger, world.scenario)
        found += _trackers_know(ledger, world.tracker.lineages)
        found += _repeats(ledger, world)
        found += _tokens_are_honest(ledger, world.scenario)
    return found


def _anchors_are_whole(ledger: LedgerReader, world: Any) -> list[str]:
    """Collecting what nobody names takes nothing that an anchor of the run names."""
    return [
        f"anchor {anchor.name} has lost {part}"
        for anchor in ledger.anchors()
        for part, name in {**anchor.objects, "version": anchor.version.object}.items()
        if not world.store.has(name)
    ]


def _lets_go(ledger: LedgerReader, scenario: Scenario) -> list[str]:
    """Bodies that no anchor replays are gone as far as the plan says, and no further."""
    wanted = plan_body_removal(ledger.anchors(), scenario.plan.storage.bodies_behind)
    step, found = 0 if wanted is None else wanted, []
    for view in ledger.steps():
        kept = {one.trajectory is not None for one in ledger.samples(view.step)}
        if kept != {view.step > step}:
            found.append(f"step {view.step}: bodies kept: {kept}, meant to go up to step {step}")
    return found


def _tokens_are_honest(ledger: LedgerReader, scenario: Scenario) -> list[str]:
    """Every token is the one that its noise and version give, and its group was young enough for it.

    A sample that was interrupted goes on with the noise of its next segment; one that starts over draws
    what it drew at first. Its length is its own: nobody's interruption makes it shorter.
    """
    digests = {
        (row[0], row[1]): row[2]
        for row in ledger._file.tx.execute("SELECT lineage, step, digest FROM versions")
    }
    found = []
    for view in ledger.steps():
        for one in ledger.samples(view.step):
            made = one.trajectory
            if made is None:
                continue
            noise = ("train", made.ordinal, made.sample)
            meant = tuple(
                token
                for segment, s in enumerate(made.spans)
                for token in draw_tokens(
                    noise, segment, digests[s.lineage, s.step], s.end - s.start
                )
            )
            if made.token_ids != meant or len(meant) != length_of(made):
                found.append(f"{one.task_id}/{made.sample}: its tokens are not those of its noise")
            age = view.step - 1 - min(span.step for span in made.spans)
            if age > scenario.plan.train.staleness_max:
                found.append(f"{one.task_id}/{made.sample}: its oldest token is {age} steps old")
    return found


def _told(ledger: LedgerReader, world: Any) -> list[str]:
    """What was acknowledged is there: results, steps, and the status's own count."""
    found = []
    tx = ledger._file.tx
    for (task, epoch), names in world.acknowledged.items():
        rows = tx.execute(
            "SELECT trajectory_id FROM trajectories WHERE task_id = ? AND epoch = ? ORDER BY sample",
            (task, epoch),
        )
        if tuple(row[0] for row in rows) != names:
            found.append(f"{task} at epoch {epoch}: acknowledged, and not in the ledger")
    for (lineage, step), chain in world.commits.items():
        row = tx.execute(
            "SELECT chain FROM versions WHERE lineage = ? AND step = ?", (lineage, step)
        ).fetchone()
        if row is None or row[0] != chain:
            found.append(f"step {lineage}/{step}: acknowledged, and not in the ledger")
    counted, status = ledger.dispositions(), world.status()
    if status is not None and any(
        counted.get(kind, 0) != number for kind, number in status.dispositions.items()
    ):
        found.append(f"the status counts {status.dispositions}, the ledger {counted}")
    return found


def _trackers_know(ledger: LedgerReader, told: dict[int, int]) -> list[str]:
    """What a tracker heard last of each step is of the chain that lives, and no step was left out."""
    meant = {view.step: view.lineage for view in ledger.steps()}
    return [
        f"step {step}: a tracker last heard of lineage {told.get(step)}, it is of {lineage}"
        for step, lineage in meant.items()
        if told.get(step) != lineage
    ]


def _repeats(ledger: LedgerReader, world: Any) -> list[str]:
    """The learner's chain comes out again from the recorded batches alone, and from what stays of them."""
    state = begin(world.store.put)
    for view in ledger.steps():
        recorded = ledger.record(view.step)
        assert recorded is not None
        gone = view.step <= ledger.removed().step
        ids = _names(ledger, view.step) if gone else _ids(ledger.batch(view.step))
        state = take_step(state, ids, recorded.cursor, recorded.plan["salt"], world.store.put)
        if view.step == 1 or view.lineage == 0:
            if state.chain != view.chain:
                return [f"step {view.step} does not come out again from its recorded batch"]
        else:
            return []
    return []


def _names(ledger: LedgerReader, step: int) -> tuple[tuple[str, ...], ...]:
    """The names of a batch's trajectories in data order, read without a body."""
    groups: dict[int, dict[int, str]] = {}
    for one in ledger.samples(step):
        ordinal = int(one.task_id.removeprefix("t/"))
        groups.setdefault(ordinal, {})[one.sample] = one.trajectory_id
    return tuple(
        tuple(name for _, name in sorted(names.items())) for _, names in sorted(groups.items())
    )


def _ids(batch: Any) -> tuple[tuple[str, ...], ...]:
    from rollout.coordinator.batch_building import build_groups_batch

    groups = build_groups_batch(batch)
    for group, names in zip(groups.groups, groups.ids, strict=True):
        made = tuple(name_trajectory(one) for one in group.trajectories)
        assert made == names, "a body is not what its name says"
    return groups.ids


def read_history(file: Path) -> tuple[tuple[str, ...], ...]:
    """Chain and consumed trajectories of every step: what two runs are compared by."""
    with LedgerReader(file) as ledger:
        return tuple(
            (view.chain, *(one.trajectory_id for one in ledger.samples(view.step)))
            for view in ledger.steps()
        )
