"""Several runs side by side: ranks, what differs, repeated experiments, curves; one page that needs nothing."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_kit import make_report, make_row, make_step
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.report.comparison.page import compare_runs, describe_comparison, write_comparison
from rollout.report.comparison.panels import build_curves, plan_comparison, style_of
from rollout.report.comparison.ranking import Measure, Standing, choose_measure, rank, told_apart
from rollout.report.comparison.settings import (
    differing_settings,
    flatten_spec,
    group_runs,
    shorten_snapshot,
)


def make_run(rate="1e-4", seed=0, reward=0.5, **changes):
    spec = {"seed": seed, "train": {"optimizer": {"adamw": {"learningRate": rate}}, "data": []}}
    steps = [make_step(step, reward=reward, step_seconds=2.0) for step in range(1, 13)]
    return make_report(**{"spec": spec, "steps": steps, "evaluations": [], **changes})


def test_a_run_is_ranked_by_its_last_steps_and_the_best_comes_first():
    found = compare_runs([("a", make_run(reward=0.2)), ("b", make_run(reward=0.9))], "reward")

    assert [run.label for run in found.runs] == ["b", "a"]
    assert found.runs[0].standing == Standing(value=pytest.approx(0.9), step=12)


def test_a_loss_is_better_when_it_is_lower():
    low = make_run(steps=[make_step(1, loss=0.1, reward=None)])
    high = make_run(steps=[make_step(1, loss=0.7, reward=None)])

    assert [run.label for run in compare_runs([("high", high), ("low", low)]).runs] == [
        "low",
        "high",
    ]


def test_a_run_without_the_measure_is_last_and_has_no_rank():
    found = compare_runs([("new", make_run(steps=[])), ("old", make_run(reward=-5.0))], "reward")
    said = describe_comparison(found)["runs"]

    assert [(run["run"], run["rank"]) for run in said] == [("old", 1), ("new", None)]


def test_what_chooses_by_itself_is_the_selection_split():
    rows = [make_row(12, 0.5), make_row(12, 0.4, name="pick", split="selection")]

    assert choose_measure([make_run(evaluations=rows)]).name == "pick/selection/accuracy"
    assert choose_measure([make_run(evaluations=rows[:1])]).name == "sums/report/accuracy"
    assert choose_measure([make_run()]).name == "reward"


def test_a_measure_that_all_runs_have_is_taken_before_one_that_some_have():
    measured = make_run(evaluations=[make_row(12, 0.5)])

    assert choose_measure([measured, make_run()]).name == "reward"


def test_rows_held_out_decide_between_preference_runs_by_their_last_value():
    def prefer(first, last):
        shares = {1: first, 9: last}
        steps = [
            make_step(step, reward=None, loss=0.1)
            | ({"eval_preference_accuracy": shares[step]} if step in shares else {})
            for step in range(1, 13)
        ]
        return make_run(steps=steps)

    found = compare_runs([("a", prefer(1.0, 0.6)), ("b", prefer(0.5, 0.7))])

    assert found.measure.name == "eval_preference_accuracy"
    assert [(run.label, run.standing) for run in found.runs] == [
        ("b", Standing(value=0.7, step=9)),
        ("a", Standing(value=0.6, step=9)),
    ]


def test_losses_of_different_algorithms_are_no_ranking():
    trained = make_run(steps=[make_step(1, loss=2.0, reward=None)])

    assert choose_measure([make_run(), trained]).name == "reward"
    assert choose_measure([trained]).name == "loss"


@pytest.mark.parametrize("wanted", ["sums", "accuracy", "sums/accuracy", "sums/report/accuracy"])
def test_a_measure_has_short_names(wanted):
    runs = [make_run(evaluations=[make_row(12, 0.5), make_row(12, 0.7, metric="pass@4")])]

    assert choose_measure(runs, wanted).name == "sums/report/accuracy"


def test_a_measure_that_nobody_has_is_told_with_those_there_are():
    with pytest.raises(
        SpecError, match=r"--by speed: no run has this measure; there are: .*reward"
    ):
        choose_measure([make_run()], "speed")


def test_overlapping_intervals_are_not_told_apart():
    best, near = Standing(value=0.9, low=0.8, high=0.95), Standing(value=0.8, low=0.7, high=0.85)
    far = Standing(value=0.5, low=0.4, high=0.6)

    assert told_apart(best, near) is False
    assert told_apart(best, far) is True
    assert told_apart(best, Standing(value=0.5)) is None


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=12), st.booleans())
def test_ranks_are_a_permutation_ordered_by_value(values, lower):
    measure = Measure(metric="loss" if lower else "reward")
    standings = [None if v is None else Standing(value=v) for v in values]

    order = rank(standings, measure)
    ranked = [values[at] for at in order]
    known = [value for value in ranked if value is not None]

    assert sorted(order) == list(range(len(values)))
    assert ranked == [*known, *[None] * (len(values) - len(known))]
    assert known == sorted(known, reverse=not lower)


def test_only_settings_that_differ_are_shown_and_empty_ones_are_absent():
    specs = [
        {"a": {"b": 1, "same": 2}, "c": [{"d": 1}], "e": []},
        {"a": {"b": 3, "same": 2}, "c": [{"d": 1}, {"d": 4}]},
    ]

    assert differing_settings(specs) == {"a.b": (1, 3), "c[1].d": (None, 4)}
    assert flatten_spec({"a": [1, 2], "b": {}}) == {"a": [1, 2]}


def test_settings_of_another_algorithm_are_no_difference():
    ppo = {"train": {"algorithm": {"ppo": {"gamma": "1.0", "clipLow": "0.2"}}}}
    grpo = [{"train": {"algorithm": {"grpo": {"groupSize": n, "clipLow": "0.2"}}}} for n in (4, 8)]

    assert differing_settings([ppo, grpo[0]]) == {"train.algorithm": ("ppo", "grpo")}
    assert differing_settings([ppo, *grpo]) == {
        "train.algorithm": ("ppo", "grpo", "grpo"),
        "train.algorithm.grpo.groupSize": (None, 4, 8),
    }
    assert differing_settings(grpo) == {"train.algorithm.grpo.groupSize": (4, 8)}


def test_other_contents_under_the_same_names_are_shown_and_part_no_experiment():
    runs = [make_run(contents={"model": f"blake3:{n}"}) for n in "ab"]
    found = compare_runs([("a", runs[0]), ("b", runs[1])], "reward")

    assert found.settings == {"content.model": ("blake3:a", "blake3:b")}
    assert [run.group for run in found.runs] == [0, 0]


def test_runs_that_differ_in_the_seed_alone_are_one_experiment():
    specs = [make_run(rate, seed).spec for rate in ("1e-4", "3e-4") for seed in (0, 1)]

    assert group_runs(differing_settings(specs), 4) == [0, 0, 1, 1]


def test_who_watches_parts_no_runs():
    specs = [make_run().spec, {**make_run().spec, "tracking": [{"tensorboard": {}}]}]

    assert group_runs(differing_settings(specs), 2) == [0, 0]


def test_repeated_experiments_are_told_with_mean_and_spread():
    named = [
        (f"{rate}-{seed}", make_run(rate, seed, reward))
        for rate, rewards in (("1e-4", (0.1, 0.3)), ("3e-4", (0.6, 0.8)))
        for seed, reward in enumerate(rewards)
    ]
    best, worst = describe_comparison(compare_runs(named, "reward"))["groups"]

    assert best["settings"] == {"train.optimizer.adamw.learningRate": "3e-4"}
    assert (best["mean"], best["lowest"], best["highest"]) == pytest.approx((0.7, 0.6, 0.8))
    # Two values a and b: the sample's standard deviation is |a - b| / sqrt(2).
    assert best["spread"] == pytest.approx(0.2 / 2**0.5)
    assert worst["mean"] == pytest.approx(0.2)


def test_different_experiments_have_no_table_over_seeds():
    named = [("a", make_run("1e-4")), ("b", make_run("3e-4"))]

    assert describe_comparison(compare_runs(named))["groups"] == []


def test_an_experiment_keeps_its_colour_and_each_repetition_its_dash():
    styles = {style_of(group, member) for group in range(12) for member in range(4)}

    assert len(styles) == 48
    assert style_of(3, 0)[0] == style_of(3, 1)[0] != style_of(4, 0)[0]


def test_time_counts_steps_and_not_the_pause_before_a_resume():
    steps = [make_step(1, step_seconds=2.0, committed_at=10.0)]
    steps += [make_step(2, step_seconds=3.0, committed_at=90000.0)]
    curves = build_curves(make_run(steps=steps))

    assert curves.seconds == [2.0, 5.0]
    assert [curves.seconds_at(step) for step in (0, 1, 2, 9)] == [0.0, 2.0, 5.0, 5.0]


def drawn(*runs):
    return [(f"r{at}", build_curves(run), style_of(at, 0)) for at, run in enumerate(runs)]


def test_every_run_has_its_line_in_every_plot_by_step_and_by_time():
    rows = [make_row(0, 0.1), make_row(12, 0.5)]
    runs = drawn(make_run(evaluations=rows), make_run(evaluations=rows[1:]))

    for axis, ends in (("step", (0, 12)), ("time", (0, 24.0))):
        plots = {plot.title: plot for plot in plan_comparison(runs, axis)}
        first, second = plots["sums, report split: accuracy"].series
        assert (first.xs[0], first.xs[-1], list(second.xs)) == (*ends, [ends[1]])
        assert first.low is not None
        assert [series.label for series in plots["Reward"].series] == ["r0", "r1"]
        assert len({series.colour for series in plots["Reward"].series}) == 2


@pytest.mark.parametrize(
    ("seconds", "label"), [(2.0, "seconds"), (60.0, "minutes"), (3600.0, "hours")]
)
def test_time_has_a_unit_that_fits(seconds, label):
    steps = [make_step(step, step_seconds=seconds) for step in range(1, 13)]
    plots = plan_comparison(drawn(make_run(steps=steps)), "time")

    assert plots[0].x_label == f"{label} in steps"
    assert plots[0].series[0].xs[-1] == 24 if seconds == 2 else 12


def test_a_metric_that_is_nothing_everywhere_is_left_out():
    steps = [make_step(1, clip_fraction_low=0.0, entropy=0.4)]
    titles = [plot.title for plot in plan_comparison(drawn(make_run(steps=steps)), "step")]

    assert "Entropy" in titles
    assert not [title for title in titles if title.startswith("Clipping")]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    rows = [make_row(0, 0.1), make_row(12, 0.5)]
    named = [
        ("first", make_run("1e-4", 0, evaluations=rows)),
        ("first", make_run("1e-4", 1, evaluations=rows)),
        ("<b>wild</b>", make_run("<i>3e-4</i>", 0, steps=[], evaluations=[])),
    ]
    page = tmp_path_factory.mktemp("compare") / "deep" / "compare.html"
    document = write_comparison(compare_runs(named), page)
    return page, document


def test_the_page_fetches_nothing_and_runs_nothing(written):
    page = written[0].read_text()

    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!#)', page) == []
    assert [url for url in re.findall(r"url\(([^)]*)\)", page) if not url.startswith("#")] == []


def test_names_and_settings_are_text_and_never_markup(written):
    page = written[0].read_text()

    assert "&lt;b&gt;wild&lt;/b&gt;" in page
    assert "&lt;i&gt;3e-4&lt;/i&gt;" in page
    assert "<b>wild" not in page


def test_runs_of_one_name_are_told_apart(written):
    assert [run["run"] for run in written[1]["runs"]] == ["first", "first (2)", "<b>wild</b>"]


def test_the_winner_on_the_report_split_is_warned_about(written):
    assert "better than it is" in written[0].read_text()


def test_the_json_beside_the_page_holds_curves_and_settings(written):
    document = json.loads(written[0].with_suffix(".json").read_text())

    assert document["settings"]["seed"] == [0, 1, 0]
    assert document["curves"]["first"]["metrics"]["reward"] == [0.5] * 12
    assert document["curves"]["first"]["seconds"][-1] == 24.0


def test_one_run_is_nothing_to_compare(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    (tmp_path / "one-1").mkdir()
    (tmp_path / "one-1" / "worker.json").write_text("{}")

    done = CliRunner().invoke(app, ["runs", "compare", "one", "one-1"])

    assert isinstance(done.exception, SpecError)
    assert "name at least two" in str(done.exception)


def test_what_a_run_began_with_is_told_by_the_snapshot_and_not_by_its_place():
    begun = {"object": {"uri": "file:///far/away.json", "digest": "blake3:0123456789abcdef"}}
    forked = {"seed": 1, "restoreFrom": begun}
    assert shorten_snapshot(forked) == {"seed": 1, "restoreFrom": "0123456789ab"}
    assert shorten_snapshot({"seed": 1}) == {"seed": 1}
    assert shorten_snapshot({"restoreFrom": None}) == {"restoreFrom": None}
