"""Hands a run's result on: once it has succeeded, its models are packed where other runs find them.

The outcome is told to the operator only after that, because pods go as soon as it is. A model that cannot
be packed does not change how the run ended; it is logged, and runs that name it wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from rollout.coordinator.context import RunContext
from rollout.coordinator.rules.evaluation import choose_best
from rollout.errors import StoreError
from rollout.types import WeightVersion

log = logging.getLogger(__name__)

LATEST, BEST = "Latest", "Best"


async def hand_over(run: RunContext) -> None:
    """Pack the models of a run that has succeeded, once in a coordinator's life."""
    if is_handing(run):
        handed = await asyncio.to_thread(_pack, run, find_versions(run))
        for name, place in handed.items():
            # Before anybody hears of it: what is in the ledger is never collected.
            await run.ledger.add_event("handed", place, {"snapshot": name})
        run.state.handed = (*run.state.handed, *handed.values())
        run.handed = handed
        run.wake()


def is_handing(run: RunContext) -> bool:
    """Whether the run has succeeded and its models are still to be packed."""
    outcome = run.state.outcome
    succeeded = outcome is not None and outcome.kind == "Succeeded"
    return run.packer is not None and run.handed is None and succeeded


def find_versions(run: RunContext) -> Mapping[str, WeightVersion]:
    """What others may start from, by the snapshot's name."""
    found: dict[str, WeightVersion] = {}
    if run.state.anchors:
        found[LATEST] = run.state.anchors[-1].version
    best = choose_best(run.plan.evaluations, run.state.results())
    if best is not None:
        version = run.state.versions.get((best.result.lineage, best.result.step))
        found |= {BEST: version} if version is not None else {}
    return found


def _pack(run: RunContext, versions: Mapping[str, WeightVersion]) -> dict[str, str]:
    assert run.packer is not None
    places: dict[str, str] = {}
    for name, version in versions.items():
        try:
            places[name] = run.packer(run.store, version)
        except StoreError as error:
            log.error("the model is not handed on snapshot=%s: %s", name, error)  # noqa: TRY400 - expected
        else:
            log.info("model packed snapshot=%s step=%d at=%s", name, version.step, places[name])
    return places
