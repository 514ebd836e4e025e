"""Curves of several runs laid over each other: one plot per metric, one line per run.

Pure. Along the bottom steps, or the seconds that steps took: pauses between a stop and a resume are not
counted. A run keeps its colour and dash in every plot, so one legend serves the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollout.report.data import ReportInput, Rows, Step, by_evaluation, headlines
from rollout.report.panels import PANELS, Panel
from rollout.report.plots import COLOURS, Plot, Series

PALETTE = (*COLOURS, "#d4739d", "#5b8c2a", "#1f9aa8", "#8c5a2b", "#3d4f8f", "#8c2f39")
DASHES = ("-", "--", ":", "-.")
PALE = 0.14
Axis = Literal["step", "time"]
Style = tuple[str, str]
Drawn = tuple[str, "Curves", Style]
UNITS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From so many seconds on, seconds a unit, its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What of a run is drawn. ``metrics[name][i]`` belongs to ``steps[i]``; None where it has none.

    ``seconds[i]``: time in steps up to the end of that one.
    """

    steps: Sequence[int]
    seconds: Sequence[float]
    metrics: Mapping[str, Sequence[float | None]]
    evaluations: Rows

    @property
    def seconds_total(self) -> float:
        """Time in steps, all of them."""
        return self.seconds[-1] if self.seconds else 0.0

    def seconds_at(self, step: int) -> float:
        """Time in steps up to and with ``step``; 0 before the first."""
        passed = [s for number, s in zip(self.steps, self.seconds, strict=True) if number <= step]
        return passed[-1] if passed else 0.0


def build_curves(data: ReportInput) -> Curves:
    """The curves of one run."""
    keys = [key for panel in PANELS for key in panel.series.values()]
    found = {key: [_number(step.get(key)) for step in data.steps] for key in keys}
    return Curves(
        steps=[int(step["step"]) for step in data.steps],
        seconds=list(itertools.accumulate(_seconds(step) for step in data.steps)),
        metrics={key: ys for key, ys in found.items() if any(y is not None for y in ys)},
        evaluations=headlines(data.evaluations),
    )


def _seconds(step: Step) -> float:
    known = _number(step.get("step_seconds"))
    return sum((step.get("phase_seconds") or {}).values()) if known is None else known


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if good else None


def style_of(group: int, member: int) -> Style:
    """Colour and dash of a run: a colour per experiment, a dash per repetition of it."""
    return PALETTE[group % len(PALETTE)], DASHES[(group // len(PALETTE) + member) % len(DASHES)]


def plan_comparison(runs: Sequence[Drawn], x: Axis) -> list[Plot]:
    """The plots of the page, evaluations first; a metric that is 0 everywhere is left out."""
    seconds, unit = _time_unit(runs)
    scale = _Scale(axis=x, seconds=seconds, label="step" if x == "step" else f"{unit} in steps")
    plots = [*_evaluation_plots(runs, scale), *_metric_plots(runs, scale)]
    return [plot for plot in plots if _says_something(plot)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The x axis. ``seconds`` are in one unit of it, where it is time."""

    axis: Axis
    seconds: float
    label: str

    def place(self, curves: Curves, step: int) -> float:
        return step if self.axis == "step" else curves.seconds_at(step) / self.seconds

    def places(self, curves: Curves) -> list[float]:
        if self.axis == "step":
            return [float(step) for step in curves.steps]
        return [seconds / self.seconds for seconds in curves.seconds]


def _time_unit(runs: Sequence[Drawn]) -> tuple[float, str]:
    longest = max((curves.seconds_total for _, curves, _ in runs), default=0.0)
    return next((size, name) for least, size, name in UNITS if longest >= least)


def _evaluation_plots(runs: Sequence[Drawn], scale: _Scale) -> Iterator[Plot]:
    sorted_rows = [(drawn, by_evaluation(drawn[1].evaluations)) for drawn in runs]
    for key in dict.fromkeys(key for _, rows in sorted_rows for key in rows):
        name, split, metric = key
        yield Plot(
            title=f"{name}, {split} split: {metric}",
            unit="share correct",
            series=[
                _measured(drawn, rows[key], scale) for drawn, rows in sorted_rows if key in rows
            ],
            note="Held-out prompts; bands are 95 % confidence intervals.",
            bounds=(0, 1.02),
            x_label=scale.label,
            legend=False,
        )


def _measured(drawn: Drawn, rows: Rows, scale: _Scale) -> Series:
    label, curves, (colour, dash) = drawn
    return Series(
        label=label,
        xs=[scale.place(curves, row["step"]) for row in rows],
        ys=[row["value"] for row in rows],
        low=[row["low"] for row in rows],
        high=[row["high"] for row in rows],
        markers=True,
        colour=colour,
        dash=dash,
    )


def _metric_plots(runs: Sequence[Drawn], scale: _Scale) -> Iterator[Plot]:
    for panel in PANELS:
        for label, key in panel.series.items():
            lines = [_line(drawn, key, scale) for drawn in runs if key in drawn[1].metrics]
            yield Plot(
                title=_title(panel, label),
                unit=panel.unit,
                series=lines,
                note=_note(panel, label),
                from_zero=panel.from_zero,
                span_min=panel.span_min,
                x_label=scale.label,
                legend=False,
                pale=PALE,
            )


def _title(panel: Panel, label: str) -> str:
    alone = len(panel.series) == 1 or label == panel.title.lower()
    return panel.title if alone else f"{panel.title}, {label}"


def _note(panel: Panel, label: str) -> str:
    """The panel's note, where it is about this line of it."""
    other = panel.title == "KL" and label != "actor vs learner"
    return "" if other or panel.title in {"Loss", "No signal"} else panel.note


def _line(drawn: Drawn, key: str, scale: _Scale) -> Series:
    label, curves, (colour, dash) = drawn
    points = [
        (x, y)
        for x, y in zip(scale.places(curves), curves.metrics[key], strict=True)
        if y is not None
    ]
    return Series(
        label=label,
        xs=[x for x, _ in points],
        ys=[y for _, y in points],
        colour=colour,
        dash=dash,
    )


def _says_something(plot: Plot) -> bool:
    return any(y != 0 for series in plot.series for y in series.ys) or (
        plot.bounds is not None and bool(plot.series)
    )
