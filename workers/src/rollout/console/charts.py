"""Curves as SVG text: what ``report.panels`` plans, drawn in about a millisecond each, without a plotting library.

Colours are classes, so that a dark page has its own, and no ``style`` is written, which the pages' policy forbids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from rollout.report.comparison.panels import PALETTE
from rollout.report.plots import Plot, Series, smooth, y_limits
from rollout_api.visible import visible

WIDTH, HEIGHT = 460, 236
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 30, 46
BUCKETS = 110
"""Each gives the lowest and the highest value of its steps: a spike of one step is seen."""
SMOOTH_MIN = 40
TICKS = 4
COLOURS = 6
DASHES = {"--": " d1", ":": " d2", "-.": " d3"}
"""Classes of a series' own dash."""
LABEL_MAX = 24
TICK_WIDTH = 48
"""A number below the axis is no wider; one nearer to the edge ends there."""

Point = tuple[float, float]


def draw(plot: Plot) -> str:
    """The plot as an ``<svg>`` element with a title for those who do not see it."""
    series = [keep_finite(one) for one in plot.series]
    low, high = y_limits(plot)
    xs = [x for one in series for x in one.xs]
    frame = _Frame(min(xs, default=0.0), max(xs, default=1.0), low, high)
    title = escape(visible(f"{plot.title}, {plot.unit}"))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f'<text class="title" x="0" y="13">{escape(visible(plot.title))}</text>',
        f'<text class="unit" x="{WIDTH}" y="13" text-anchor="end">{escape(visible(plot.unit))}</text>',
        *_grid(frame, plot.x_label),
        *(_stack(series, frame) if plot.stacked else _lines(series, frame)),
        *_legend(series if plot.legend and len(series) > 1 else []),
        "</svg>",
    ]
    return "".join(parts)


class _Frame:
    """Where a value lies on the paper."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        self.left, self.low = left, low
        self.right = right if right > left else left + 1
        self.high = high if high > low else low + 1

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(1.0, max(0.0, share)))


def thin(points: Sequence[Point], buckets: int = BUCKETS) -> list[Point]:
    """At most two points a bucket, its lowest and its highest in their order; all where they are few."""
    if len(points) <= 2 * buckets:
        return list(points)
    found: list[Point] = []
    for bucket in range(buckets):
        start, stop = (len(points) * (bucket + one) // buckets for one in (0, 1))
        part = points[start:stop]
        ends = {min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])}
        found.extend(sorted(ends))
    return found


def ticks(low: float, high: float, number: int = TICKS) -> list[float]:
    """Round values between ``low`` and ``high``, about ``number`` of them."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low] if math.isfinite(low) else []
    exponent = math.floor(math.log10(span / number))
    step = next(
        one * 10**exponent for one in (1, 2, 5, 10) if one * 10**exponent >= span / number * 0.999
    )
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def keep_finite(series: Series) -> Series:
    """The series without the points whose value is no number."""
    keep = [i for i, y in enumerate(series.ys) if math.isfinite(y)]
    if len(keep) == len(series.ys):
        return series
    return Series(
        label=series.label,
        xs=[series.xs[i] for i in keep],
        ys=[series.ys[i] for i in keep],
        markers=series.markers,
        colour=series.colour,
        dash=series.dash,
    )


def _grid(frame: _Frame, x_label: str) -> Iterator[str]:
    for value in ticks(frame.low, frame.high):
        y = frame.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick" x="{LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{_number(value)}</text>'
    floor = HEIGHT - BOTTOM
    yield f'<path class="axis" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>'
    for value in ticks(frame.left, frame.right, 6):
        if value == int(value) or x_label != "step":
            x, anchor = frame.x(value), "middle"
            if x > WIDTH - TICK_WIDTH / 2:
                x, anchor = float(WIDTH), "end"
            yield f'<text class="tick" x="{x:.1f}" y="{floor + 14}" text-anchor="{anchor}">{_number(value)}</text>'
    yield (
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">'
        f"{escape(visible(x_label))}</text>"
    )


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _lines(series: Sequence[Series], frame: _Frame) -> Iterator[str]:
    for index, one in enumerate(series):
        points = list(zip(one.xs, one.ys, strict=True))
        colour, dash = _colour(one, index), DASHES.get(one.dash, "")
        if one.low is not None and one.high is not None:
            yield _band(one, frame, colour)
        if len(points) > SMOOTH_MIN and not one.markers:
            yield _path(thin(points), frame, f"line pale c{colour}{dash}")
            smoothed = smooth(one.ys, window=max(5, len(points) // 25))
            points = thin(list(zip(one.xs, smoothed, strict=True)), BUCKETS // 2)
        yield _path(points, frame, f"line c{colour}{dash}")
        if one.markers or len(points) == 1:
            yield from (
                f'<circle class="dot c{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>'
                for x, y in thin(points)
            )


def _colour(series: Series, index: int) -> int:
    """A series' own colour of the palette, else one by its order."""
    return PALETTE.index(series.colour) if series.colour in PALETTE else index % COLOURS


def _path(points: Sequence[Point], frame: _Frame, classes: str) -> str:
    way = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)
    return f'<path class="{classes}" d="M{way}"/>' if points else ""


def _band(one: Series, frame: _Frame, colour: int) -> str:
    upper = thin(list(zip(one.xs, one.high or (), strict=False)))
    lower = thin(list(zip(one.xs, one.low or (), strict=False)))
    way = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in [*upper, *reversed(lower)])
    return f'<path class="band c{colour}" d="M{way}Z"/>'


def _stack(series: Sequence[Series], frame: _Frame) -> Iterator[str]:
    """Areas upon each other: the lowest first."""
    if not series:
        return
    xs = series[0].xs
    window = max(1, len(xs) // 25)
    base = [0.0] * len(xs)
    for index, one in enumerate(series):
        top = [low + y for low, y in zip(base, smooth(one.ys, window=window), strict=True)]
        upper, lower = (_every(xs, ys) for ys in (top, base))
        way = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in [*upper, *reversed(lower)])
        yield f'<path class="area c{index % COLOURS}" d="M{way}Z"/>'
        base = top


def _every(xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
    """Evenly spaced points, for areas that have to meet."""
    last = len(xs) - 1
    number = min(len(xs), BUCKETS)
    picked = [round(i * last / max(1, number - 1)) for i in range(number)]
    return [(xs[i], ys[i]) for i in picked]


def _legend(series: Sequence[Series]) -> Iterator[str]:
    x = float(LEFT)
    for index, one in enumerate(series):
        label = visible(one.label)
        label = label if len(label) <= LABEL_MAX else f"{label[: LABEL_MAX - 1]}…"
        yield f'<rect class="key c{index % COLOURS}" x="{x:.0f}" y="{HEIGHT - 13}" width="9" height="9"/>'
        yield f'<text class="tick" x="{x + 13:.0f}" y="{HEIGHT - 5}">{escape(label)}</text>'
        x += 26 + 5.6 * len(label)
