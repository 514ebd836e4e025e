"""What becomes of a finished run's object. Its deletion is refused where a tool would make it, and its work, again."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.fields.tracked import find_tracker
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRun, RolloutRunSpec


def deletion_has_a_time(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Something after a time that never comes."""
    limits = spec.limits
    if limits.ttl_action == "DeleteRun" and limits.ttl_seconds_after_finished is None:
        yield Problem(
            field="spec.limits.ttlAction",
            reason="NothingToFollow",
            message="DeleteRun follows ttlSecondsAfterFinished, which is not set",
            fix="set ttlSecondsAfterFinished, such as 86400 for a day",
        )


def nobody_makes_it_again(run: RolloutRun) -> Iterator[Problem]:
    """An object that stands in Git comes back, and trains again. Asks the metadata, so it is no rule of the spec."""
    tracker = find_tracker(run.metadata.labels, run.metadata.annotations)
    if run.spec.limits.ttl_action == "DeleteRun" and tracker:
        yield Problem(
            field="spec.limits.ttlAction",
            reason="ManagedByGitOps",
            message=f"{tracker} and would make the deleted run again, which would train again",
            fix="leave ttlAction out, or apply the run by hand",
        )


RULES = (deletion_has_a_time,)
