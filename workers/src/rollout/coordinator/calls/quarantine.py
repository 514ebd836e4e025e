"""Actors whose engines do not hold the weights that they were told to hold.

One wrong digest sends an actor back to a dense base, and nothing is sampled meanwhile. An actor that stays
wrong is set aside, the others go on without it; when more than half are, the fault is no actor's and the run
ends, with all that was committed (protocol section 9).
"""

from __future__ import annotations

from collections.abc import Iterable

from rollout.coordinator.state import Worker
from rollout.protocol import messages as m

WRONG_MAX = 3
"""Wrong digests in a row that quarantine an actor: the last loads were from a dense base."""


def note_activation(worker: Worker, ask: m.Activation, now: float) -> None:
    """What an actor says of one load of a version, at ``now`` on the coordinator's clock."""
    if ask.ok:
        worker.loaded, worker.trouble, worker.wrong_in_a_row = ask.version, "", 0
        return
    worker.trouble = ask.message or f"loaded digest {ask.digest}, expected {ask.version.digest}"
    if ask.digest:
        worker.num_wrong += 1
        worker.wrong_in_a_row += 1
        if worker.wrong_in_a_row == WRONG_MAX:
            worker.aside_since = now


def describe_stall(workers: Iterable[Worker], now: float, patience_seconds: float) -> str:
    """Who is set aside when that is more than half of the actors; else empty.

    Every actor that was ever heard of counts, those that are away too: they may come back. The majority
    must have lasted for the patience, so that a run that has just begun is not judged by its first actor.
    """
    actors = [one for one in workers if one.role == "actor"]
    aside = [
        one
        for one in actors
        if one.wrong_in_a_row >= WRONG_MAX and now - one.aside_since >= patience_seconds
    ]
    if 2 * len(aside) <= len(actors):
        return ""
    who = "; ".join(f"{worker.name}: {worker.trouble}" for worker in aside)
    return (
        f"{len(aside)} of {len(actors)} actors could not load the weights faithfully, {WRONG_MAX} times "
        f"or more: look at storage, memory and engine versions ({who})"
    )
