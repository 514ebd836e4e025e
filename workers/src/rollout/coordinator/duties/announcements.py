"""What is told to trackers that take events: found anew in the state each time, with the same ids, so that none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial

from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.references import find_best
from rollout.coordinator.duties.tracking import tell
from rollout.coordinator.rules.evaluation import check_gates
from rollout.run_events import RunEvent
from rollout.seams import Announcer

JUDGED = frozenset({"Finished", "GateFailed"})
"""Reasons of ends at which gates were looked at."""


async def announce(run: RunContext) -> None:
    """Give trackers that take events all that is true now; each keeps what is new to it."""
    takers = [(index, one) for index, one in enumerate(run.trackers) if isinstance(one, Announcer)]
    if not takers:
        return
    events = tuple(find_events(run))
    for index, tracker in takers:
        await asyncio.to_thread(tell, run, index, "events", partial(tracker.announce, events))


def find_events(run: RunContext) -> Iterator[RunEvent]:
    """What on-call and pipelines wait for, in its order."""
    state, attempt = run.state, run.plan.attempt
    yield RunEvent(ident=f"started/{attempt}", kind="started", data={"attempt": attempt})
    yield from _snapshots(run)
    yield from _best(run)
    if run.stuck is not None:
        at = run.stuck.at.isoformat()
        said = {"worker": run.stuck.worker, "message": run.stuck.message, "since": at}
        yield RunEvent(ident=f"stuck/{attempt}/{at}", kind="stuck", data=_placed(run, said))
    if state.outcome is not None:
        end = state.outcome
        if end.reason in JUDGED:
            yield from _missed_gates(run)
        said = {"outcome": end.kind, "reason": end.reason, "message": end.message}
        yield RunEvent(ident=f"ended/{attempt}", kind=end.kind.lower(), data=_placed(run, said))


def _placed(run: RunContext, said: Mapping[str, object]) -> dict[str, object]:
    place = {"lineage": run.state.lineage, "step": run.state.step}
    return {"attempt": run.plan.attempt, **place, **said}


def _snapshots(run: RunContext) -> Iterator[RunEvent]:
    for anchor in run.state.anchors:
        yield RunEvent(
            ident=f"snapshot/{anchor.lineage}/{anchor.step}",
            kind="snapshot",
            data={
                "snapshot": anchor.name,
                "lineage": anchor.lineage,
                "step": anchor.step,
                "chain": anchor.chain,
            },
        )


def _best(run: RunContext) -> Iterator[RunEvent]:
    best = find_best(run)
    if best is None or (best.result.lineage, best.result.step) not in run.state.versions:
        return
    found = best.result
    yield RunEvent(
        ident=f"best/{found.name}/{found.split}/{found.lineage}/{found.step}",
        kind="best",
        data={
            "lineage": found.lineage,
            "step": found.step,
            "evaluation": found.name,
            "split": found.split,
            "metric": best.metric,
            "value": best.value,
        },
    )


def _missed_gates(run: RunContext) -> Iterator[RunEvent]:
    missed = check_gates(run.plan.evaluations, run.state.results(), run.state.step)
    for index, gate in enumerate(missed):
        yield RunEvent(
            ident=f"gate/{run.plan.attempt}/{index}",
            kind="gate",
            data=_placed(run, {"fails": gate.fails, "message": gate.message}),
        )
