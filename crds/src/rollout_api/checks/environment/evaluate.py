"""Runs that only evaluate: what is asked of their evaluations.

The last rule is one of runs of inference, too: neither has a learner.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported, unread
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec

_MOMENTS = ("at_start", "every_steps", "at_end", "selects")


def something_is_evaluated(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A run that evaluates nothing."""
    if spec.evaluate is None:
        return
    if not spec.evaluations:
        yield Problem(
            field="spec.evaluations",
            reason="MissingField",
            message="a run that evaluates has no evaluations",
            fix="name one, such as evaluations: [{suite: {builtin: {name: arithmetic}}}]",
        )
    if spec.evaluate.baseline is not None:
        fix = "measure the other model by a run of its own, and compare: rollout runs compare"
        yield not_supported("spec.evaluate.baseline", "a second model beside the first", fix)


def each_is_measured_once(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """There are no steps that anything could be measured between."""
    if spec.evaluate is None:
        return
    for index, item in enumerate(spec.evaluations):
        path = f"spec.evaluations[{index}]"
        yield from unread(item, _MOMENTS, path, "of a run that measures each evaluation once")


def rows_of_an_evaluation_are_scored(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """There is no training whose rewards would be taken."""
    if spec.evaluate is None:
        return
    for index, item in enumerate(spec.evaluations):
        if item.suite.data is not None and not item.suite.rewards:
            yield Problem(
                field=f"spec.evaluations[{index}].suite.rewards",
                reason="MissingField",
                message="nothing says how answers are scored: a run that only evaluates has no rewards of its own",
                fix="add rewards, such as [{builtin: {name: exact-match}}]",
            )


def no_learner_no_adapter(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Every engine samples from a whole model."""
    if spec.train is not None or spec.serve is not None:
        return
    work = "an inference run" if spec.infer else "a run that evaluates"
    if spec.model.lora is not None:
        yield not_supported("spec.model.lora", f"an adapter of {work}", "leave it out")


RULES = (
    something_is_evaluated,
    each_is_measured_once,
    rows_of_an_evaluation_are_scored,
    no_learner_no_adapter,
)
