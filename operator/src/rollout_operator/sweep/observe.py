"""A RolloutSweep and its runs, as the store knows them. Reads; decides nothing.

What a run's status says of its metric is written by the run's own pods: it is held to be a finite number, or nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from rollout_api.base import parse_real
from rollout_api.checks.sweeps.sweep import check_form
from rollout_api.names import LABEL_SWEEP_OUTCOME, sweep_run_name
from rollout_api.problems import problems_from_validation
from rollout_api.sweeps.points import count_points, plan_points
from rollout_api.v1alpha1.sweep import RolloutSweep, SweepSpec, SweepStatus
from rollout_api.visible import visible
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.run.index.references import RUN
from rollout_operator.run.plan.preconditions.checks import describe
from rollout_operator.sweep.model import SweepSeen, SweptRun

log = logging.getLogger(__name__)

SPECS_MAX = 256
"""Specs that are kept as they were read: a look at a sweep comes every few seconds."""
STEP_MAX = 2**53
STOPPED = "Stopped"
Metric = Literal["RewardMean", "BestEvaluation"]


def look(stored: Stored, store: Store) -> SweepSeen:
    """A sweep as it is now."""
    spec, read_fault = read_spec(stored.key.name, stored.spec)
    fault = stored.excess or read_fault
    status = read_status(stored, spec)
    document = json.loads(stored.spec)
    found: Mapping[str, SweptRun] = {}
    if spec is not None and not fault:
        named = [one.name for one in status.runs] or _names(stored.key.name, spec)
        found = _find_runs(stored, store, named, spec.objective.metric)
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
    found = [(one.name, one.values) for one in status.runs]
    return found == [(sweep_run_name(name, at), one) for at, one in enumerate(plan_points(spec))]


def _names(sweep: str, spec: SweepSpec) -> list[str]:
    return [sweep_run_name(sweep, index) for index in range(count_points(spec))]


def _find_runs(
    sweep: Stored, store: Store, named: Iterable[str], metric: Metric
) -> dict[str, SweptRun]:
    keys = (Key(namespace=sweep.key.namespace, name=name, kind=RUN) for name in named)
    found = (store.find(key) for key in keys)
    return {one.key.name: see_run(one, sweep.uid, metric) for one in found if one is not None}


def see_run(stored: Stored, sweep_uid: str, metric: Metric) -> SweptRun:
    """What of a run its sweep decides by."""
    status = stored.read_status()
    progress = _mapping(status.get("progress"))
    outcome, message = _outcome(status)
    return SweptRun(
        name=stored.key.name,
        uid=stored.uid,
        version=stored.version,
        mine=bool(sweep_uid) and stored.facts.sweep == sweep_uid,
        deleting=stored.deleting,
        suspended=json.loads(stored.spec).get("suspend") is True,
        stopped=stored.labels().get(LABEL_SWEEP_OUTCOME) == STOPPED,
        outcome=outcome,
        message=message,
        step=_step(progress.get("step")),
        value=read_value(progress, metric),
    )


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
