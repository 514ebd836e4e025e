"""Curves are drawn from at most a few hundred points, and what one step alone did is still seen. Pure."""

from __future__ import annotations

import math
import re

import pytest
from console_kit import Page

from rollout.console.charts import BUCKETS, draw, thin, ticks
from rollout.console.tables import ROWS_MAX, plot_table
from rollout.report.plots import Plot, Series


def plot(ys, **more) -> Plot:
    series = Series(label="reward", xs=list(range(len(ys))), ys=list(ys))
    return Plot(title="Reward", unit="mean", series=[series], **more)


@pytest.mark.parametrize("at", [0, 1, 4_321, 99_999])
def test_a_spike_of_one_step_among_a_hundred_thousand_stays(at):
    points = [(x, 5.0 if x == at else 0.0) for x in range(100_000)]

    kept = thin(points)

    assert (at, 5.0) in kept
    assert len(kept) <= 2 * BUCKETS
    assert kept == sorted(kept)


def test_few_points_are_all_drawn():
    points = [(x, math.sin(x)) for x in range(2 * BUCKETS)]

    assert thin(points) == points


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 7), (0, 1e-6), (1e9, 3e9), (0.1, 0.1), (0, math.inf)]
)
def test_ticks_are_few_and_inside(low, high):
    found = ticks(low, high)

    assert len(found) <= 6
    assert all(low - 1e-9 * abs(low) <= one <= high * (1 + 1e-9) for one in found)


@pytest.mark.parametrize(
    "ys", [[], [1.0], [1.0, math.nan, 2.0], [math.inf], [0.0] * 500, [math.nan] * 3]
)
def test_whatever_a_run_recorded_is_drawn_without_a_style(ys):
    drawn = draw(plot(ys))

    assert "nan" not in drawn
    assert "inf" not in drawn
    assert not re.search(r"\bstyle=", drawn)
    assert Page(drawn).named("svg")[0]["role"] == "img"


def test_areas_lie_upon_each_other():
    series = [Series(label=name, xs=[1, 2, 3], ys=[0.5, 0.25, 0.5]) for name in ("wait", "train")]

    drawn = draw(Plot(title="Phases", unit="share", series=series, stacked=True, bounds=(0, 1)))

    assert len([one for one in Page(drawn).named("path") if "area" in one["class"]]) == 2


def test_a_table_beside_the_curve_has_its_ends_and_few_rows():
    table = plot_table(plot(range(1000)))

    assert table[0] == ["step", "reward"]
    assert (table[1], table[-1]) == (["0", "0"], ["999", "999"])
    assert len(table) == ROWS_MAX + 1
