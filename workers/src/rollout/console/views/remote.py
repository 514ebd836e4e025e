"""Pages of a run's ledger as data, for a console elsewhere: what is asked and what is answered, and who reads it here.

The question and the answer are JSON. An answer has of texts and tokens what its page shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from rollout.console.charts import keep_finite
from rollout.console.lineage import Box, list_boxes
from rollout.console.views.evaluating import read_evaluations
from rollout.console.views.sampling import PAGE_ROWS, SamplePage, read_page
from rollout.console.views.steps import read_step, read_steps
from rollout.console.views.tokens import WINDOW, TokenWindow, read_window
from rollout.errors import SpecError
from rollout.ledger.records import SampleRow
from rollout.ledger.sql.browsing import SampleQuery
from rollout.ledger.views import AttemptView, Consumption
from rollout.report.data import ReportInput
from rollout.report.gather import gather, is_offline, open_ledger, read_best
from rollout.report.panels import plan_plots
from rollout.report.plots import Plot
from rollout.types import WeightVersion

TEXT_CHARACTERS_MAX = 20_001
"""One more than a page shows, so that it can say that there is more."""
QUESTION_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsQuestion:
    """Which page of the steps, from 1 on."""

    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQuestion:
    """Which step, and which page of its groups."""

    step: int
    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuestion:
    """Which sample of which task."""

    task: str
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesAnswer:
    """A page of samples; ``offline``: of a run that learns from rows of data."""

    found: SamplePage
    offline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTexts:
    """What is shown of a trajectory: the end of its prompt, and the beginnings of what was answered and wanted."""

    prompt_text: str
    text: str
    answer: str
    rewards: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShown:
    """One sample, with its way as ``boxes``. ``trajectory`` None: its text is no longer kept."""

    task_id: str
    trajectory_id: str
    sample: SampleRow
    trajectory: SampleTexts | None
    admitted_at: float
    attempts: tuple[AttemptView, ...]
    consumptions: tuple[Consumption, ...]
    version_after: WeightVersion | None
    anchor: str | None
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensQuestion:
    """Which window of which sample's tokens."""

    task: str
    sample: int
    start: int = 0
    size: int = WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAnswer:
    """A window of tokens; None: they are no longer kept."""

    found: TokenWindow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoQuestion:
    """There is one such page of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesAnswer:
    """Every curve of a run, without points that are no numbers."""

    plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationsAnswer:
    """What was measured, and the version that it chose."""

    rows: tuple[dict[str, Any], ...]
    best: dict[str, Any] | None


def read_tokens(folder: Path, asked: TokensQuestion) -> TokensAnswer:
    """A window of at most WINDOW tokens. Raises LedgerError, SpecError."""
    if not (asked.start >= 0 and 0 < asked.size <= WINDOW):
        raise SpecError(f"start from 0 on, size 1 to {WINDOW}, got {asked.start} and {asked.size}")
    found = read_window(folder, asked.task, asked.sample, asked.start, asked.size)
    return TokensAnswer(found=found)


def read_measured(folder: Path) -> EvaluationsAnswer:
    """What was measured. Raises LedgerError."""
    return EvaluationsAnswer(rows=tuple(read_evaluations(folder)), best=read_best(folder))


def read_curves(folder: Path) -> CurvesAnswer:
    """Every curve. Raises LedgerError."""
    plots = plan_plots(gather(folder, whole=False))
    return CurvesAnswer(
        plots=tuple(replace(plot, series=tuple(map(keep_finite, plot.series))) for plot in plots)
    )


def read_report(folder: Path) -> ReportInput:
    """What runs are compared by, without numbers that are not finite. Raises LedgerError."""
    data = gather(folder, whole=False)
    return replace(data, steps=[_without_infinite(row) for row in data.steps])


def _without_infinite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if not (isinstance(value, float) and not math.isfinite(value))
    }


def read_samples(folder: Path, asked: SampleQuery) -> SamplesAnswer:
    """A page of samples, of at most as many rows as a page has. Raises LedgerError, SpecError."""
    if asked.limit > PAGE_ROWS + 1:
        raise SpecError(f"limit: at most {PAGE_ROWS + 1} samples are asked for, got {asked.limit}")
    return SamplesAnswer(found=read_page(folder, asked), offline=is_offline(folder))


def read_sample(folder: Path, asked: SampleQuestion) -> SampleShown:
    """One sample. Raises LedgerError, SpecError."""
    with open_ledger(folder) as ledger:
        trace = ledger.sample(asked.task, asked.sample)
    made = trace.trajectory
    texts = None
    if made is not None:
        texts = SampleTexts(
            prompt_text=made.prompt_text[-TEXT_CHARACTERS_MAX:],
            text=made.text[:TEXT_CHARACTERS_MAX],
            answer=(made.answer or "")[:TEXT_CHARACTERS_MAX],
            rewards=dict(made.rewards),
        )
    return SampleShown(
        task_id=trace.task_id,
        trajectory_id=trace.trajectory_id,
        sample=trace.sample,
        trajectory=texts,
        admitted_at=trace.admitted_at,
        attempts=trace.attempts,
        consumptions=trace.consumptions,
        version_after=trace.version_after,
        anchor=trace.anchor,
        boxes=tuple(list_boxes(trace)),
    )


PAGES: dict[str, tuple[type[Any], Callable[[Path, Any], Any]]] = {
    "steps": (StepsQuestion, lambda folder, asked: read_steps(folder, asked.page)),
    "step": (StepQuestion, lambda folder, asked: read_step(folder, asked.step, asked.page)),
    "samples": (SampleQuery, read_samples),
    "sample": (SampleQuestion, read_sample),
    "tokens": (TokensQuestion, read_tokens),
    "curves": (NoQuestion, lambda folder, _: read_curves(folder)),
    "report": (NoQuestion, lambda folder, _: read_report(folder)),
    "evaluations": (NoQuestion, lambda folder, _: read_measured(folder)),
}
"""What a page is asked by, and who reads it."""


def read_page_as_data(folder: Path, page: str, question: str) -> Any:
    """The page as plain data. Raises SpecError for a page or a question that there is not, LedgerError."""
    if page not in PAGES:
        raise SpecError(f"{page}: no page that is read as data; there are: {', '.join(PAGES)}")
    if len(question) > QUESTION_CHARACTERS_MAX:
        raise SpecError(
            f"--question: at most {QUESTION_CHARACTERS_MAX} characters, got {len(question)}"
        )
    kind, read = PAGES[page]
    try:
        asked = msgspec.json.decode(question, type=kind)
    except msgspec.MsgspecError as error:
        raise SpecError(f"--question: {error}: not one for the page {page}") from error
    return msgspec.to_builtins(read(folder, asked))
