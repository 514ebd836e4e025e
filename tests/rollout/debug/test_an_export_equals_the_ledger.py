"""What is read back from an exported file is what the ledger holds, token by token; whole files or none."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from debug_kit import fingerprint
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.codec import name_trajectory
from rollout.errors import LedgerError, SpecError, StoreError
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.report import export as exporting
from rollout.report.export import export_run
from rollout.report.rows import read_samples
from rollout.types import Trajectory, VersionSpan


def rebuild(row: dict) -> Trajectory:
    """A trajectory from an exported row, by the documented columns alone."""
    rewards = {
        name.removeprefix("reward/"): value
        for name, value in row.items()
        if name.startswith("reward/") and value is not None
    }
    return Trajectory(
        ordinal=row["ordinal"],
        sample=row["sample"],
        prompt_ids=tuple(row["prompt_ids"]),
        token_ids=tuple(row["token_ids"]),
        actor_logprobs=tuple(row["actor_logprobs"]),
        loss_mask=tuple(row["loss_mask"]),
        spans=tuple(VersionSpan(**span) for span in row["spans"]),
        rewards=rewards,
        reward=row["reward"],
        ending=row["ending"],
        text=row["completion"],
        prompt_text=row["prompt"],
        answer=row["answer"],
    )


def ledger_samples(folder):
    with LedgerReader(folder / "ledger.db") as ledger:
        return [(step.step, view) for step in ledger.steps() for view in ledger.samples(step.step)]


def read_parquet(path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def read_jsonl(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_every_sample_is_there_whole_under_its_own_name(grpo_run, tmp_path, form):
    before = fingerprint(grpo_run)
    [(path, rows)] = export_run(grpo_run, tmp_path / "out", ["samples"], form).values()

    found = (read_parquet if form == "parquet" else read_jsonl)(path)
    expected = ledger_samples(grpo_run)
    assert rows == len(found) == len(expected) == 60
    for row, (step, view) in zip(found, expected, strict=True):
        assert (row["step"], row["place"], row["task"]) == (step, view.place, view.task_id)
        assert name_trajectory(rebuild(row)) == row["id"] == view.trajectory_id
    assert fingerprint(grpo_run) == before


def test_pandas_and_datasets_read_the_same(grpo_run, tmp_path):
    from datasets import Dataset

    [(path, _)] = export_run(grpo_run, tmp_path, ["samples"], "parquet").values()
    expected = [view.trajectory for _, view in ledger_samples(grpo_run)]

    frame = pd.read_parquet(path)
    rows = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))

    assert [tuple(ids) for ids in frame["token_ids"]] == [t.token_ids for t in expected]
    assert list(frame["reward/exact-match"]) == [t.rewards["exact-match"] for t in expected]
    assert [tuple(row["actor_logprobs"]) for row in rows] == [t.actor_logprobs for t in expected]
    assert rows[0]["spans"] == read_parquet(path)[0]["spans"]


def test_metrics_are_those_of_every_step(grpo_run, tmp_path):
    [(path, rows)] = export_run(grpo_run, tmp_path, ["metrics"], "parquet").values()
    with LedgerReader(grpo_run / "ledger.db") as ledger:
        steps = ledger.steps()

    found = read_parquet(path)
    assert rows == len(steps) == 5
    for row, step in zip(found, steps, strict=True):
        assert (row["step"], row["chain"], row["num_consumed"]) == (step.step, step.chain, 12)
        for name in ("loss", "reward", "gradient_norm", "entropy"):
            assert row[name] == step.metrics[name]
        assert row["reward_by_source/exact-match"] == step.metrics["reward"]
        assert row["phase_seconds/train"] == step.phase_seconds["train"]


def test_rows_of_data_are_exported_by_the_step_that_took_them(sft_run, tmp_path):
    [(path, rows)] = export_run(sft_run, tmp_path, ["samples"], "parquet").values()

    found = read_parquet(path)
    assert rows == 15
    assert [row["step"] for row in found] == [step for step in range(1, 6) for _ in range(3)]
    for row in found:
        first, _, rest = row["prompt"].partition("+")
        assert row["answer"] == str(int(first) + int(rest.rstrip("=")))
        assert json.loads(row["row"])["prompt"] == row["prompt"]
    assert len({row["ordinal"] for row in found[:9]}) == 9


def test_a_file_says_where_it_comes_from(grpo_run, tmp_path):
    [(path, _)] = export_run(grpo_run, tmp_path, ["samples"], "parquet").values()
    said = json.loads(pq.read_schema(path).metadata[b"rollout"])
    with LedgerReader(grpo_run / "ledger.db") as ledger:
        run = ledger.run()

    assert (said["uid"], said["step"], said["chain"]) == (run.identity.uid, 5, run.chain)


def test_an_empty_table_has_its_columns(grpo_run, tmp_path):
    [(path, rows)] = export_run(grpo_run, tmp_path, ["evaluations"], "parquet").values()

    assert rows == 0
    assert "low" in pq.read_schema(path).names


def test_rows_pass_through_in_groups(grpo_run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "ROW_GROUP_ROWS", 7)
    [(path, _)] = export_run(grpo_run, tmp_path, ["samples"], "parquet").values()

    file = pq.ParquetFile(path)
    sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
    assert sizes == [7] * 8 + [4]
    assert [row["place"] for row in read_parquet(path)][:12] == list(range(12))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_file_that_could_not_be_finished_leaves_the_old_one_and_nothing_else(
    grpo_run, tmp_path, form
):
    [(path, _)] = export_run(grpo_run, tmp_path, ["samples"], form).values()
    before = path.read_bytes()
    damage(grpo_run)

    with pytest.raises(LedgerError):
        export_run(grpo_run, tmp_path, ["samples"], form)

    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [path.name]


def damage(folder):
    """Lose the body of one late task."""
    import sqlite3

    with sqlite3.connect(folder / "ledger.db") as ledger:
        tables = [row[0] for row in ledger.execute("SELECT name FROM sqlite_master")]
        table = next(name for name in tables if "bod" in name)
        ledger.execute(f"DELETE FROM {table} WHERE task_id = 't/13'")
        ledger.commit()
    ledger.close()


def test_a_folder_that_cannot_be_made_is_named(grpo_run, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"samples\.parquet cannot be written"):
        export_run(grpo_run, tmp_path / "file" / "out", ["samples"], "parquet")


def test_the_command_writes_what_is_asked_for(grpo_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--what", "samples", "--what", "metrics", "--format", "jsonl", "--output", "exported"]

    done = CliRunner().invoke(app, ["runs", "export", str(grpo_run), *words])

    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    assert names == {"samples.jsonl", "metrics.jsonl"}
    assert "60" in done.stdout


def test_samples_of_an_offline_run_are_its_rows_and_say_what_is_not_recorded(sft_run):
    done = CliRunner().invoke(app, ["runs", "samples", str(sft_run), "--step", "2"])

    rows = read_samples(sft_run, 2)
    assert [row["place"] for row in rows] == [0, 1, 2]
    assert all(row["answer"] in done.stdout for row in rows)
    assert "losses of single rows are not recorded" in done.stderr


def test_rows_of_data_cannot_be_sorted_by_reward(sft_run):
    with pytest.raises(SpecError, match="no reward in the ledger"):
        read_samples(sft_run, 2, sort="reward")


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_samples_of_a_step_that_is_not_there_are_refused(algorithm, request):
    with pytest.raises(SpecError, match="committed steps 1 to 5"):
        read_samples(request.getfixturevalue(f"{algorithm}_run"), 9)
