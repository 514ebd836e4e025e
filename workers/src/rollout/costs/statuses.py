"""What the status of a cluster's run says of its usage: there while the object is, whether or not a pod of it is left. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from rollout.costs.usage import EPOCH, DayTotal, RunUsage
from rollout_api.v1alpha1.run_status import DayOfUse

UNTOLD = "its status tells no usage: it has worked for less than a minute, or is of a version that told none, or is a training service"


def usage_of(run: Mapping[str, Any], *, qualified: bool) -> RunUsage:
    """What a RolloutRun has used. ``qualified`` names it with its namespace, as in a list of several."""
    meta = run["metadata"]
    namespace, progress = meta.get("namespace", "default"), _progress(run)
    try:
        days = tuple(_day(DayOfUse.model_validate(one)) for one in progress.get("usage") or ())
        why = "" if days else UNTOLD
    except (ValidationError, ValueError) as error:
        days, why = (), f"its status cannot be read: {error}"
    return RunUsage(
        run=f"{namespace}/{meta['name']}" if qualified else meta["name"],
        uid=meta.get("uid", ""),
        namespace=namespace,
        labels=meta.get("labels") or {},
        stays=None if why else (),
        days=days,
        why=why,
        samples=int((progress.get("dispositions") or {}).get("consumed", 0)),
    )


def _progress(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return (run.get("status") or {}).get("progress") or {}


def _day(told: DayOfUse) -> DayTotal:
    day = datetime.fromisoformat(f"{told.day}T00:00:00+00:00")
    shape = told.model_dump(mode="json", exclude_none=True, exclude={"day", "role", "milliseconds"})
    return DayTotal(
        role=told.role,
        day_ms=int((day - EPOCH).total_seconds()) * 1000,
        used_ms=told.milliseconds,
        place={**shape, "requests": [shape.get("requests", {})]},
    )
