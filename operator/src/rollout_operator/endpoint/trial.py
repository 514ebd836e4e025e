"""What a promotion asks of a candidate before it serves, one after the other, and what each comes to. Pure.

A Job asks its servers the promotion's evaluations; another watches it beside what serves while it answers a share of the
sessions. The figures are those of our own containers, but in a tenant's pods: they are read strictly, and all that they
decide is which of the tenant's own servers answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from rollout_api.canary import describe_side, find_worse
from rollout_api.checks.environment.evaluations import evaluation_name
from rollout_api.conditions import Reason
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.endpoint import CanaryFigures, CanaryGuard, Measured
from rollout_operator.jobs.work import Work

_MEASURED = TypeAdapter(tuple[Measured, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """Whether a candidate may go on. ``words``: whom is waited for, or why not; ``starts``: its Job has to be made.

    ``figures``: what was found, for people; ``records``: the same in the fields of a Revision.
    """

    state: Literal["Passed", "Waiting", "Failed"]
    words: str = ""
    starts: bool = False
    figures: str = ""
    records: Mapping[str, Any] = field(default_factory=dict)


PASSED = TrialVerdict(state="Passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The evaluations. ``measured``: what ``job`` has found, as the status has it; None before its end.

    ``work``: how far the Job is; None where there is none, or nobody has looked.
    """

    waits: ClassVar[Reason] = Reason.EVALUATING
    failed: ClassVar[Reason] = Reason.EVALUATION_FAILED
    job: str
    asked: tuple[SuiteRun, ...]
    measured: tuple[Measured, ...] | None = None
    work: Work | None = None

    @property
    def known(self) -> bool:
        """Whether the status has what it comes to."""
        return self.measured is not None

    def judge(self) -> TrialVerdict:
        """What is known so far."""
        if self.measured is not None:
            return self._judge(self.measured)
        waits = f"Job {self.job} asks its servers"
        if self.work is None or self.work.state != "Done":
            late = "it took longer than promotion.evaluationSeconds"
            return judge_work(self.work, self.job, waits, late)
        found = _read_measured(self.asked, self.work.answer)
        return _mute(self.job) if found is None else self._judge(found)

    def _judge(self, found: Sequence[Measured]) -> TrialVerdict:
        held = tuple(_hold(one, figure) for one, figure in zip(self.asked, found, strict=True))
        missed = [
            describe_measured(figure)
            for one, figure in zip(self.asked, held, strict=True)
            if not figure.passed and one.gate is not None and one.gate.action == "StopPromotion"
        ]
        return TrialVerdict(
            state="Failed" if missed else "Passed",
            words="; ".join(missed),
            figures="; ".join(map(describe_measured, held)),
            records={"measured_by": self.job, "measured": held},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The candidate beside what serves. ``figures``: what ``job`` has seen, as the status has it; None before its end."""

    waits: ClassVar[Reason] = Reason.BAKING
    failed: ClassVar[Reason] = Reason.CANARY_WORSE
    job: str
    percent: int
    guard: CanaryGuard
    figures: CanaryFigures | None = None
    work: Work | None = None

    @property
    def known(self) -> bool:
        """Whether the status has what it comes to."""
        return self.figures is not None

    def judge(self) -> TrialVerdict:
        """What is known so far."""
        if self.figures is not None:
            return self._judge(self.figures)
        waits = f"it answers {self.percent} % of the sessions, Job {self.job} watches"
        if self.work is None or self.work.state != "Done":
            return judge_work(self.work, self.job, waits, "the Job that watches took too long")
        try:
            return self._judge(CanaryFigures.model_validate_json(self.work.answer))
        except ValidationError:
            return _mute(self.job)

    def _judge(self, figures: CanaryFigures) -> TrialVerdict:
        worse = find_worse(figures, self.guard)
        told = f"candidate: {describe_side(figures.candidate)}; beside it: {describe_side(figures.serving)}"
        return TrialVerdict(
            state="Failed" if worse else "Passed",
            words=worse,
            figures=told,
            records={"watched_by": self.job, "canary": figures},
        )


def judge_work(work: Work | None, job: str, waits: str, late: str) -> TrialVerdict:
    """Of a Job that has not ended well."""
    if work is None:
        return TrialVerdict(state="Waiting", words=waits, starts=True)
    if work.state == "Failed":
        return TrialVerdict(
            state="Failed", words=f"nothing is known by Job {job}: {work.words or late}"
        )
    return TrialVerdict(state="Waiting", words=f"{waits}: {work.words}" if work.words else waits)


def _mute(job: str) -> TrialVerdict:
    return TrialVerdict(state="Failed", words=f"Job {job} has not said what was asked of it")


def _read_measured(asked: Sequence[SuiteRun], answer: str) -> tuple[Measured, ...] | None:
    """One figure for each evaluation in its place, or nothing."""
    try:
        found = _MEASURED.validate_json(answer)
    except ValidationError:
        return None
    named = [evaluation_name(one, place) for place, one in enumerate(asked)]
    return found if [one.name for one in found] == named else None


def _hold(asked: SuiteRun, found: Measured) -> Measured:
    """A figure held against its bar."""
    if asked.gate is None:
        return found.model_copy(update={"lower_bound": None, "passed": True})
    bound = asked.gate.lower_bound
    passed = found.metric == asked.gate.metric and found.low is not None and found.low >= bound
    return found.model_copy(update={"lower_bound": bound, "passed": passed})


def describe_measured(found: Measured) -> str:
    """For people: the figure, its interval, the bar."""
    if found.value is None or found.low is None or found.high is None:
        return (
            f"{found.name}: no {found.metric} was measured ({found.num_prompts} prompts answered)"
        )
    figure = f"{found.name}: {found.metric} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    bar = "" if found.lower_bound is None else f", the bar is {found.lower_bound:g}"
    return f"{figure} of {found.num_prompts} prompts{bar}"


# -- the mark of a revision that was given up ---------------------------------------------------------


def mark_failed(trial: Trial | Canary, why: str) -> str:
    """What is noted of a revision that ``trial`` has ended."""
    return f"{trial.failed}: {trial.job}: {why}"


def read_mark(mark: str) -> tuple[Reason, str]:
    """The reason of a mark and its words; those of other ends are as they stand."""
    head, _, words = mark.partition(": ")
    for kind in (Trial, Canary):
        if head == kind.failed:
            return kind.failed, words
    return Reason.PROGRESS_DEADLINE_EXCEEDED, mark
