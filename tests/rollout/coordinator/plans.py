"""Plans of runs by their facts: each is put where ``RunPlan`` has it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from rollout.coordinator.plan import (
    LearnerPlan,
    LimitsPlan,
    NumericsPlan,
    RunPlan,
    SnapshotsPlan,
    StoragePlan,
    TrainPlan,
)

PARTS = {
    "train": TrainPlan,
    "limits": LimitsPlan,
    "numerics": NumericsPlan,
    "snapshots": SnapshotsPlan,
    "storage": StoragePlan,
    "learner": LearnerPlan,
}


def run_plan(**facts: Any) -> RunPlan:
    """A plan with these facts, whichever part they stand in."""
    parts = {name: part(**taken(part, facts)) for name, part in PARTS.items()}
    return RunPlan(**parts, **facts)


def changed(plan: RunPlan, **facts: Any) -> RunPlan:
    """The plan with other facts."""
    parts = {
        name: replace(getattr(plan, name), **taken(part, facts)) for name, part in PARTS.items()
    }
    return replace(plan, **parts, **facts)


def taken(part: type, facts: dict[str, Any]) -> dict[str, Any]:
    """Those of the facts that are this part's, out of the rest."""
    return {one.name: facts.pop(one.name) for one in fields(part) if one.name in facts}
