"""A RolloutSweep and its runs, as the store knows them. Reads; decides nothing.

What a run's status says of its metric is written by the run's own pods: it is held to be a finite number, or nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from rollout_api.base import parse_real
from rollout_api.checks.sweeps.sweep import check_form
from rollout_api.names import (
    LABEL_SWEEP_OUTCOME,
    LABEL_SWEEP_SUSPENDED,
    sweep_fork_name,
    sweep_run_name,
)
from rollout_api.problems import problems_from_validation
from rollout_api.sweeps.points import count_points, plan_points
from rollout_api.sweeps.settable import find_settable, read_text
from rollout_api.v1alpha1.sweep import VALUE_MAX, RolloutSweep, SweepSpec, SweepStatus
from rollout_api.visible import visible
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.run.index.references import RUN, SNAPSHOT
from rollout_operator.run.plan.preconditions.checks import describe
from rollout_operator.sweep.model import SweepSeen, SweptRun, SweptSnapshot

log = logging.getLogger(__name__)

SPECS_MAX = 256
"""Specs that are kept as they were read: a look at a sweep comes every few seconds."""
STEP_MAX = 2**53
STOPPED, HELD = "Stopped", "true"
"""Values of the labels that say why a run of a sweep is suspended."""
Metric = Literal["RewardMean", "BestEvaluation"]


def look(stored: Stored, store: Store) -> SweepSeen:
    """A sweep as it is now."""
    spec, read_fault = read_spec(stored.key.name, stored.spec)
    fault = stored.excess or read_fault
    status = read_status(stored, spec)
    document = json.loads(stored.spec)
    found: Mapping[str, SweptRun] = {}
    saved: Mapping[str, SweptSnapshot] = {}
    if spec is not None and not fault:
        named = [one.name for one in status.runs] or _names(stored.key.name, spec)
        runs = _find(stored, store, RUN, named)
        found = {name: see_run(one, stored.uid, spec) for name, one in runs.items()}
        snapshots = _find(stored, store, SNAPSHOT, named)
        saved = {name: see_snapshot(one, stored.uid) for name, one in snapshots.items()}
    return SweepSeen(
        name=stored.key.name,
        namespace=stored.key.namespace,
        uid=stored.uid,
        generation=stored.generation,
        spec=None if fault else spec,
        template=(document.get("template") or {}).get("spec") or {},
        fault=fault,
        status=status,
        runs=found,
        snapshots=saved,
    )


@lru_cache(maxsize=SPECS_MAX)
def read_spec(name: str, packed: bytes) -> tuple[SweepSpec | None, str]:
    """The spec, or what is wrong with it: the webhook may not have been asked, and a definition looks into no template."""
    whole = {"metadata": {"name": name}, "spec": json.loads(packed)}
    try:
        spec = RolloutSweep.model_validate(whole).spec
    except ValidationError as error:
        return None, describe(problems_from_validation(error, RolloutSweep))
    problems = tuple(check_form(spec))
    return (None, describe(problems)) if problems else (spec, "")


def read_status(stored: Stored, spec: SweepSpec | None) -> SweepStatus:
    """The status, as far as this version knows its fields; an empty one where it cannot be this sweep's: it is found again by the runs."""
    known = {one.alias or name for name, one in SweepStatus.model_fields.items()}
    said = stored.read_status()
    try:
        read = SweepStatus.model_validate({k: one for k, one in said.items() if k in known})
    except ValidationError as error:
        log.warning("the status cannot be read key=%s error=%s", stored.key, error)
        return SweepStatus()
    if spec is None or _is_of(read, stored.key.name, spec):
        return read
    log.warning("the status is of other runs and is not read key=%s", stored.key)
    return read.model_copy(update={"runs": ()})


def _is_of(status: SweepStatus, name: str, spec: SweepSpec) -> bool:
    if not status.runs:
        return True
    points = plan_points(spec)
    own, forks = status.runs[: len(points)], status.runs[len(points) :]
    known = [(sweep_run_name(name, at), values) for at, values in enumerate(points)]
    return (
        [(one.name, one.values) for one in own] == known
        and len(forks) <= (spec.forks.max if spec.forks is not None else 0)
        and all(
            one.name == sweep_fork_name(name, number)
            and one.forked_from is not None
            and len(one.values) == len(spec.parameters)
            for number, one in enumerate(forks, 1)
        )
    )


def _names(sweep: str, spec: SweepSpec) -> list[str]:
    """Of a sweep of which nothing is written: whatever there may be of it."""
    forks = range(1, 1 + (spec.forks.max if spec.forks is not None else 0))
    points = [sweep_run_name(sweep, index) for index in range(count_points(spec))]
    return [*points, *(sweep_fork_name(sweep, number) for number in forks)]


def _find(sweep: Stored, store: Store, kind: str, named: Iterable[str]) -> dict[str, Stored]:
    """The objects of a kind that have these names beside the sweep."""
    keys = (Key(namespace=sweep.key.namespace, name=name, kind=kind) for name in named)
    found = (store.find(key) for key in keys)
    return {one.key.name: one for one in found if one is not None}


def see_snapshot(stored: Stored, sweep_uid: str) -> SweptSnapshot:
    """What of a snapshot decides whether a fork can begin with it."""
    status, source = stored.read_status(), json.loads(stored.spec).get("source") or {}
    said = {one["type"]: one for one in status.get("conditions") or ()}
    ready = said.get("Ready", {}).get("status") == "True"
    place, failed = _mapping(status.get("location")), said.get("Failed", {})
    words = ""
    if failed.get("status") == "True":
        words = visible(f"{failed.get('reason', '')}: {failed.get('message', '')}")
    elif ready and not place.get("object"):
        words = "its snapshot lies on a volume, which no other run mounts: set storage.uri"
    return SweptSnapshot(
        name=stored.key.name,
        mine=bool(sweep_uid) and stored.facts.sweep == sweep_uid,
        run=str((source.get("run") or {}).get("name", ""))[:253] or stored.key.name,
        ready=ready and not words and not stored.deleting,
        failed=words,
    )


def see_run(stored: Stored, sweep_uid: str, spec: SweepSpec) -> SweptRun:
    """What of a run its sweep decides by."""
    status, document = stored.read_status(), json.loads(stored.spec)
    progress = _mapping(status.get("progress"))
    outcome, message = _outcome(status)
    return SweptRun(
        name=stored.key.name,
        uid=stored.uid,
        version=stored.version,
        mine=bool(sweep_uid) and stored.facts.sweep == sweep_uid,
        deleting=stored.deleting,
        suspended=document.get("suspend") is True,
        stopped=stored.labels().get(LABEL_SWEEP_OUTCOME) == STOPPED,
        held=stored.labels().get(LABEL_SWEEP_SUSPENDED) == HELD,
        rests=stored.facts.suspended,
        outcome=outcome,
        message=message,
        step=_step(progress.get("step")),
        value=read_value(progress, spec.objective.metric),
        values=tuple(_texts(document, spec)),
    )


def _texts(document: Mapping[str, Any], spec: SweepSpec) -> Iterator[str]:
    """What stands at the parameters, as far as something does."""
    for one in spec.parameters:
        found = read_text(document, find_settable(one.field))
        if found is not None and 0 < len(found) <= VALUE_MAX:
            yield found


def read_value(progress: Mapping[str, Any], metric: Metric) -> float | None:
    """The value of a metric in a run's progress; None for all that is no finite number."""
    if metric == "RewardMean":
        return _number(progress.get("rewardMean"))
    return _number(_mapping(progress.get("best")).get("value"))


def _number(value: Any) -> float | None:
    try:
        found = parse_real(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _step(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= STEP_MAX else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _outcome(
    status: Mapping[str, Any],
) -> tuple[Literal["Succeeded", "Failed"] | None, str]:
    said = {one["type"]: one for one in status.get("conditions") or ()}
    finished = said.get("Finished", {})
    if finished.get("status") != "True":
        return None, ""
    if said.get("Complete", {}).get("status") == "True":
        return "Succeeded", ""
    return "Failed", visible(f"{finished.get('reason', '')}: {finished.get('message', '')}")
