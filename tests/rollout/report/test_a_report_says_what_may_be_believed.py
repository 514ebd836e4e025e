"""The numbers at the head of a report, and which plots it has: pure."""

import math

import pytest
from report_kit import make_report, make_row, make_step

from rollout.report.data import headlines, summarise
from rollout.report.gather import metric_items
from rollout.report.panels import PHASES, plan_plots
from rollout.report.plots import Plot, Series, smooth, thin, y_limits


def plots(**changes) -> dict[str, Plot]:
    return {plot.title: plot for plot in plan_plots(make_report(**changes))}


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def test_noisy_numbers_are_means_of_the_first_and_the_last_ten_steps():
    summary = summarise(make_report())

    assert summary["reward_first"] == pytest.approx(0.055)
    assert summary["reward_last"] == pytest.approx(0.155)
    assert summary["steps"] == 20


def test_an_evaluation_is_told_from_its_first_to_its_last_value_with_intervals():
    [told] = summarise(make_report())["evaluations"]

    assert (told["first"]["step"], told["last"]["step"]) == (0, 20)
    assert (told["last"]["low"], told["last"]["high"]) == pytest.approx((0.7, 0.9))


def test_a_run_without_steps_has_a_report_too():
    summary = summarise(make_report(steps=[], evaluations=[], chain=""))

    assert summary["reward_last"] is None
    assert summary["evaluations"] == []
    assert plan_plots(make_report(steps=[], evaluations=[])) == []


def test_pass_at_one_of_one_sample_is_the_accuracy_and_left_out():
    single = {"accuracy": interval(0.5), "pass@1": interval(0.5), "num_samples": 9}
    several = {**single, "pass@2": interval(0.7)}

    assert [name for name, _ in metric_items(single)] == ["accuracy"]
    assert [name for name, _ in metric_items(several)] == ["accuracy", "pass@1", "pass@2"]


def test_of_many_pass_at_k_the_largest_stands_for_them():
    rows = [make_row(0, 0.5, metric=name) for name in ("accuracy", "pass@1", "pass@9", "pass@10")]

    assert [row["metric"] for row in headlines(rows)] == ["accuracy", "pass@10"]


def test_the_best_version_is_told_with_what_it_reached_where_nothing_was_chosen():
    best = {
        "step": 10,
        "evaluation": "choose",
        "split": "selection",
        "metric": "accuracy",
        "value": 0.9,
    }
    rows = [make_row(0, 0.3), make_row(10, 0.85), make_row(20, 0.8)]

    told = summarise(make_report(best=best, evaluations=rows))["best"]

    assert (told["step"], told["value"]) == (10, 0.9)
    assert [row["value"] for row in told["reported"]] == [0.85]


def test_a_run_that_learned_nothing_is_warned_about():
    steps = [make_step(step, zero_variance_share=1.0, reward_max=0.0) for step in range(1, 8)]

    [warning] = summarise(make_report(steps=steps))["warnings"]

    assert "No learning signal" in warning
    assert "always 0" in warning


def test_a_new_lineage_and_lost_samples_are_warned_about():
    steps = [make_step(1), make_step(2, lineage=1)]

    warnings = summarise(make_report(steps=steps, dispositions={"consumed": 8, "excluded": 3}))[
        "warnings"
    ]

    assert len(warnings) == 2
    assert "equality with another run is not claimed" in warnings[0]
    assert "3 samples were lost" in warnings[1]


def test_a_sound_run_has_no_warning():
    assert summarise(make_report())["warnings"] == []


def test_the_learners_time_is_shown_whole_with_saving_and_resuming():
    times = dict.fromkeys(PHASES, 0.5)

    [stack] = [
        plot
        for plot in plan_plots(make_report(steps=[make_step(1, phase_seconds=times)]))
        if plot.stacked
    ]

    assert [series.label for series in stack.series] == list(PHASES.values())
    assert sum(series.ys[0] for series in stack.series) == pytest.approx(1.0)


def test_what_was_never_recorded_has_no_plot():
    assert "KL" not in plots()
    assert "Reward" in plots()


def test_sources_of_reward_are_told_apart_where_there_are_several():
    steps = [make_step(1, reward_by_source={"right": 0.5, "short": 0.2})]

    assert "Reward by source" not in plots()
    assert [one.label for one in plots(steps=steps)["Reward by source"].series] == [
        "right",
        "short",
    ]


def test_rounding_noise_is_not_magnified():
    steps = [make_step(1, mismatch_kl=-5e-9), make_step(2, mismatch_kl=1e-9)]

    low, high = y_limits(plots(steps=steps)["KL"])

    assert high - low >= 1e-3


@pytest.mark.parametrize("ys", [[0.0, 0.0], [2.0, 3.0], [-1.0, 5.0], [float("nan"), 1.0]])
def test_every_value_lies_within_the_axis(ys):
    for from_zero in (True, False):
        plot = Plot(
            title="t",
            unit="u",
            series=[Series(label="l", xs=[0, 1], ys=ys)],
            from_zero=from_zero,
            span_min=0.1,
        )
        low, high = y_limits(plot)
        assert all(low <= y <= high for y in ys if not math.isnan(y))
        assert high - low >= 0.1
        assert low <= 0 or not from_zero


def test_long_series_are_thinned_and_keep_their_ends():
    assert thin(list(range(10_000)), 600)[0] == 0
    assert thin(list(range(10_000)), 600)[-1] == 9_999
    assert len(thin(list(range(10_000)), 600)) == 600
    assert smooth([1.0, 2.0, 3.0], window=3) == [1.5, 2.0, 2.5]
