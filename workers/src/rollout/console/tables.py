"""A curve as a table, for those who do not see it, or want the number."""

from __future__ import annotations

from rollout.console.render import format_number
from rollout.report.plots import Plot

ROWS_MAX = 12


def plot_table(plot: Plot) -> list[list[str]]:
    """A heading row, then at most ROWS_MAX rows: x, and each series' value there; the last x always."""
    known = [dict(zip(one.xs, one.ys, strict=True)) for one in plot.series]
    xs = sorted({x for one in known for x in one})
    number = min(len(xs), ROWS_MAX)
    picked = [xs[round(i * (len(xs) - 1) / max(1, number - 1))] for i in range(number)]
    heading = [plot.x_label, *(one.label for one in plot.series)]
    return [
        heading,
        *([format_number(x), *(format_number(one.get(x)) for one in known)] for x in picked),
    ]
