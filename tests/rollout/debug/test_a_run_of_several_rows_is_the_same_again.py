"""A recorded run whose episodes had several rows: replayed to every digest, shown row by row, exported whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from debug_kit import GRPO, build_config, make_trajectory, record
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.codec import name_trajectory
from rollout.console.views.tokens import read_window
from rollout.debug import recording
from rollout.debug.one_batch import inspect_batch
from rollout.debug.rendering import render_sample
from rollout.debug.replay import replay_recorded
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.report.export import export_run
from rollout.report.rows import read_samples
from rollout.types import Branch, Trajectory, VersionSpan


def make_branched(task, sample: int) -> Trajectory:
    """As the kit's; every other sample has a second row, behind its first reply."""
    made = make_trajectory(task, sample)
    if sample % 2:
        return made
    version = task.version
    row = Branch(
        prompt_ids=made.prompt_ids + made.token_ids,
        token_ids=(11, 12 + sample, 13),
        actor_logprobs=(0.0, -5.25, -5.5),
        loss_mask=(0, 1, 1),
        spans=(VersionSpan(start=1, end=3, lineage=version.lineage, step=version.step),),
    )
    return replace(made, branches=(row,))


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("branched") / "tiny-1"
    record(build_config(folder, tiny_model, {**GRPO, "maxSteps": 3}), make_branched)
    return folder


@pytest.fixture
def run(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "tiny-1"))


def ledger_samples(folder):
    with LedgerReader(folder / "ledger.db") as ledger:
        return [view for step in ledger.steps() for view in ledger.samples(step.step)]


def test_every_step_meets_its_digest_again(run):
    lines = list(replay_recorded(run))
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["equal"] for line in lines)


def test_a_row_that_somebody_changed_is_met_by_another_digest(run, monkeypatch):
    build = recording.build_groups_batch

    def changed(recorded):
        batch = build(recorded)
        group = batch.groups[0]
        one = next(t for t in group.trajectories if len(t.rows) > 1)
        other = replace(one, branches=(replace(one.branches[0], token_ids=(11, 99, 13)),))
        trajectories = tuple(other if t is one else t for t in group.trajectories)
        groups = (replace(group, trajectories=trajectories), *batch.groups[1:])
        return msgspec.structs.replace(batch, groups=groups)

    monkeypatch.setattr(recording, "build_groups_batch", changed)
    assert [line["equal"] for line in replay_recorded(run, steps_max=1)] == [True, False]


def test_a_batch_is_shown_row_by_row_with_one_advantage_for_each_sample(run):
    found = inspect_batch(run, 1)
    assert found["state_equal"]
    assert len(found["samples"]) == 3 * (2 + 1 + 2 + 1)
    by_sample: dict[tuple[int, int], set[float]] = {}
    for line in found["samples"]:
        by_sample.setdefault((line["ordinal"], line["sample"]), set()).add(line["advantage"])
        assert line["logprob"] is not None
    assert {len(values) for values in by_sample.values()} == {1}
    assert found["metrics"]["num_rows"] == 18
    assert found["metrics"]["num_sequences"] == 12


def test_tokens_are_rendered_row_by_row(run):
    views = ledger_samples(run)
    place = next(n for n, view in enumerate(views) if len(view.trajectory.rows) > 1)
    alone = next(n for n, view in enumerate(views) if len(view.trajectory.rows) == 1)
    made = views[place].trajectory

    tokens = render_sample(run, 1, place)["tokens"]
    for number, row in enumerate(made.rows):
        own = [line for line in tokens if line["row"] == number]
        assert [line["id"] for line in own] == [*row.prompt_ids, *row.token_ids]
        assert sum(line["mask"] for line in own) == sum(row.loss_mask)
    assert all("row" not in line for line in render_sample(run, 1, alone)["tokens"])
    said = CliRunner().invoke(
        app, ["debug", "render", str(run), "--step", "1", "--place", str(place)]
    )
    assert said.exit_code == 0
    assert "ROW" in said.output


def test_samples_are_listed_once_and_exported_with_all_that_their_name_is_made_of(run, tmp_path):
    views = ledger_samples(run)
    listed = [row for step in (1, 2, 3) for row in read_samples(run, step)]
    assert [row["id"] for row in listed] == [view.trajectory_id for view in views]
    [(path, rows)] = export_run(run, tmp_path / "out", ["samples"], "parquet").values()
    assert rows == len(views) == 36
    for row, view in zip(pq.read_table(path).to_pylist(), views, strict=True):
        branches = tuple(
            Branch(
                prompt_ids=tuple(one["prompt_ids"]),
                token_ids=tuple(one["token_ids"]),
                actor_logprobs=tuple(one["actor_logprobs"]),
                loss_mask=tuple(one["loss_mask"]),
                spans=tuple(VersionSpan(**span) for span in one["spans"]),
            )
            for one in row["branches"]
        )
        again = replace(view.trajectory, branches=branches) if branches else view.trajectory
        assert len(branches) == len(view.trajectory.rows) - 1
        assert name_trajectory(again) == row["id"]
        assert row["num_tokens"] == view.trajectory.num_tokens


def test_the_console_says_that_there_are_more_rows_than_it_shows(run):
    numbers = {
        len(view.trajectory.rows): read_window(run, view.task_id, view.sample, 0).num_rows
        for view in ledger_samples(run)
    }
    assert numbers == {1: 1, 2: 2}
