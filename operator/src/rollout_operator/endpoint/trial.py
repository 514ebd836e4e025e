"""What the evaluations of a promotion say of a candidate: from the Job that asks its servers to a verdict. Pure.

The figures are those of our own container, but in a tenant's pod: they are read strictly, and all that they decide is which of
the tenant's own servers answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from rollout_api.checks.environment.evaluations import evaluation_name
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.endpoint import Measured
from rollout_operator.jobs.work import Work

FAILED = "EvaluationFailed: "
"""What the mark of a revision begins with that was given up for what its evaluations said."""
_ANSWER = TypeAdapter(tuple[Measured, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is to be found out of a candidate. ``job``: the one that asks; ``measured``: what it has found, None before its end.

    ``work``: how far the Job is; None where there is none, or nobody has looked.
    """

    job: str
    asked: tuple[SuiteRun, ...]
    measured: tuple[Measured, ...] | None = None
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """Whether a candidate may serve. ``words``: whom is waited for, or why not; ``measured`` where all has been asked."""

    state: Literal["Passed", "Waiting", "Failed"]
    words: str = ""
    starts: bool = False
    measured: tuple[Measured, ...] | None = None


PASSED = TrialVerdict(state="Passed")


def judge(trial: Trial | None) -> TrialVerdict:
    """What is known so far; nothing asked is passed."""
    if trial is None:
        return PASSED
    if trial.measured is not None:
        return _judge(trial.asked, trial.measured)
    work = trial.work
    if work is None:
        return TrialVerdict(state="Waiting", words=f"Job {trial.job} asks its servers", starts=True)
    if work.state == "Failed":
        words = work.words or "it took longer than promotion.evaluationSeconds"
        return TrialVerdict(
            state="Failed", words=f"it could not be measured by Job {trial.job}: {words}"
        )
    if work.state == "Running":
        words = f"Job {trial.job} asks its servers"
        return TrialVerdict(
            state="Waiting", words=f"{words}: {work.words}" if work.words else words
        )
    found = _read(trial.asked, work.answer)
    if found is None:
        words = f"Job {trial.job} has not said what was asked of it"
        return TrialVerdict(state="Failed", words=words)
    return _judge(trial.asked, found)


def _read(asked: Sequence[SuiteRun], answer: str) -> tuple[Measured, ...] | None:
    """One figure for each evaluation in its place, or nothing."""
    try:
        found = _ANSWER.validate_json(answer)
    except ValidationError:
        return None
    named = [evaluation_name(one, place) for place, one in enumerate(asked)]
    return found if [one.name for one in found] == named else None


def _judge(asked: Sequence[SuiteRun], found: Sequence[Measured]) -> TrialVerdict:
    held = tuple(_hold(one, figure) for one, figure in zip(asked, found, strict=True))
    missed = [
        describe(figure)
        for one, figure in zip(asked, held, strict=True)
        if not figure.passed and one.gate is not None and one.gate.action == "StopPromotion"
    ]
    if missed:
        return TrialVerdict(state="Failed", words="; ".join(missed), measured=held)
    return TrialVerdict(state="Passed", measured=held)


def _hold(asked: SuiteRun, found: Measured) -> Measured:
    """A figure held against its bar."""
    if asked.gate is None:
        return found.model_copy(update={"lower_bound": None, "passed": True})
    bound = asked.gate.lower_bound
    passed = found.metric == asked.gate.metric and found.low is not None and found.low >= bound
    return found.model_copy(update={"lower_bound": bound, "passed": passed})


def describe(found: Measured) -> str:
    """For people: the figure, its interval, the bar."""
    if found.value is None or found.low is None or found.high is None:
        return (
            f"{found.name}: no {found.metric} was measured ({found.num_prompts} prompts answered)"
        )
    figure = f"{found.name}: {found.metric} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    bar = "" if found.lower_bound is None else f", the bar is {found.lower_bound:g}"
    return f"{figure} of {found.num_prompts} prompts{bar}"
