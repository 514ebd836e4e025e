"""Plans: everything a run would use, found out before it starts, in one content-addressed file.

``plan.lock`` is canonical JSON. It holds the resolved spec, the digests of model and data, batch and
memory arithmetic, and what could not be resolved. A run of a plan refuses when an input has drifted.
"""

from rollout.runs.plan.build import Plan, PlannedRun, build_plan
from rollout.runs.plan.lock import documents_of_plan, read_plan, render_plan, write_plan

__all__ = [
    "Plan",
    "PlannedRun",
    "build_plan",
    "documents_of_plan",
    "read_plan",
    "render_plan",
    "write_plan",
]
