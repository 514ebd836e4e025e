"""Small, self-contained SVG plots for the report. One idea a plot, one axis, no decoration.

Colours: one hue for a single series; at most six, told apart by order in the legend too.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2a6fb0", "#c8553d", "#3a8f6b", "#8a6bb8", "#c29a2e", "#7a8794")
WIDTH_INCHES, HEIGHT_INCHES = 4.6, 2.6
POINTS_MAX = 600
MARGIN = 0.06
"""Share of the range of y left free above the highest value, and below the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line: ``xs`` and ``ys`` of equal length; ``low``/``high`` draw a band around it.

    ``colour`` and ``dash`` (as matplotlib's linestyle) are chosen by order where they are not given.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    markers: bool = False
    colour: str | None = None
    dash: str = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A titled plot. ``unit`` labels the y axis; ``stacked`` fills the series upon each other.

    ``bounds`` fixes the y axis. Else it holds all values, 0 too when ``from_zero``, and never shows
    less than ``span_min``, so that rounding noise does not look like a signal. ``pale`` is the opacity
    of single steps behind their moving mean; 0 leaves them out.
    """

    title: str
    unit: str
    series: Sequence[Series]
    note: str = ""
    stacked: bool = False
    bounds: tuple[float, float] | None = None
    from_zero: bool = False
    span_min: float = 0.0
    x_label: str = "step"
    legend: bool = True
    pale: float = 0.3


def render_svg(plot: Plot, width: float = WIDTH_INCHES, height: float = HEIGHT_INCHES) -> str:
    """The plot as an ``<svg>`` element without an XML header; sizes in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # A fixed salt: the same plot is the same bytes. Two plots of a page must not share their names.
    salt = plot.title if plot.x_label == "step" else f"{plot.title}/{plot.x_label}"
    settings = {"svg.hashsalt": salt, "svg.fonttype": "path", "text.parse_math": False}
    with rc_context(settings):  # a name with a dollar is a name, no formula
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if plot.stacked:
            _draw_stack(axes, plot.series)
        else:
            for index, series in enumerate(plot.series):
                _draw_line(axes, series, COLOURS[index % len(COLOURS)], plot.pale)
        _dress(axes, plot)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _draw_line(axes: Axes, series: Series, usual: str, pale: float) -> None:
    colour = series.colour or usual
    xs, ys = thin(series.xs), thin(series.ys)
    marker = "o" if series.markers or len(ys) == 1 else None
    if len(ys) > 40 and not series.markers:
        if pale:
            axes.plot(xs, ys, color=colour, linewidth=0.7, alpha=pale)
        ys = smooth(ys, window=max(5, len(ys) // 25))
    axes.plot(
        xs,
        ys,
        color=colour,
        linestyle=series.dash,
        linewidth=1.7,
        label=series.label,
        marker=marker,
        markersize=3.5,
    )
    if series.low is not None and series.high is not None:
        axes.fill_between(
            xs, thin(series.low), thin(series.high), color=colour, alpha=0.16, linewidth=0
        )


def _draw_stack(axes: Axes, series: Sequence[Series]) -> None:
    xs = thin(series[0].xs)
    axes.stackplot(
        xs,
        *(smooth(thin(item.ys), window=max(1, len(xs) // 25)) for item in series),
        labels=[item.label for item in series],
        colors=COLOURS,
        alpha=0.8,
        linewidth=0,
    )


def _dress(axes: Axes, plot: Plot) -> None:
    axes.set_title(plot.title, loc="left", fontsize=10, fontweight="bold", color="#222")
    axes.set_ylabel(plot.unit, fontsize=8, color="#555")
    axes.set_xlabel(plot.x_label, fontsize=8, color="#555", loc="right", labelpad=1)
    axes.tick_params(labelsize=8, colors="#555", length=2)
    axes.grid(visible=True, axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbb")
    axes.set_ylim(*y_limits(plot))
    if plot.legend and len(plot.series) > 1:
        axes.legend(
            fontsize=7.5,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.13),
            ncols=min(3, len(plot.series)),
            borderpad=0,
            borderaxespad=0,
            handlelength=1.2,
            columnspacing=1.0,
        )


def y_limits(plot: Plot) -> tuple[float, float]:
    """The range of the y axis."""
    if plot.bounds:
        return plot.bounds
    values = [y for one in plot.series for part in (one.ys, one.low, one.high) for y in part or ()]
    finite = [y for y in values if math.isfinite(y)] or [0.0]
    low, high = min(finite), max(finite)
    if plot.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    missing = max(plot.span_min, 1e-12) - (high - low)
    if missing > 0:
        below = 0.0 if plot.from_zero else missing / 2
        low, high = low - below, high + missing - below
    margin = MARGIN * (high - low)
    return (low if plot.from_zero and low == 0 else low - margin), high + margin


def thin(values: Sequence[float], points_max: int = POINTS_MAX) -> list[float]:
    """At most ``points_max`` values, evenly spaced, first and last kept."""
    if len(values) <= points_max:
        return list(values)
    last = len(values) - 1
    return [values[round(index * last / (points_max - 1))] for index in range(points_max)]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """A centred moving mean; the window shrinks at the ends."""
    half = window // 2
    spans = ((max(0, i - half), min(len(values), i + half + 1)) for i in range(len(values)))
    return [sum(values[low:high]) / (high - low) for low, high in spans]
