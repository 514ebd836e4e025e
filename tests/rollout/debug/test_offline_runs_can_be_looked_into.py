"""Runs that learn from pairs and labels: replay, one batch, samples and export work as for any other."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from debug_kit import build_config, record
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.debug.one_batch import inspect_batch
from rollout.debug.profile import profile_steps
from rollout.debug.replay import replay_recorded
from rollout.errors import RunFailed
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.report.export import export_run
from rollout.weights.digest import load_weights, save_weights
from rollout_api.worker import WorkerConfig

PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(12)
]
LABELS = [
    {"prompt": f"{n}+{n}=", "answer": str(2 * n + n % 2), "label": n % 2 == 0} for n in range(12)
]
ALGORITHMS = {
    "dpo": ({"dpo": {"batchSize": 4}}, PAIRS),
    "ipo": ({"ipo": {"batchSize": 4}}, PAIRS),
    "rm": ({"rm": {"batchSize": 4}}, PAIRS),
    "kto": ({"kto": {"batchSize": 4}}, LABELS),
}


def configure(name: str, model: Path, folder: Path) -> WorkerConfig:
    algorithm, rows = ALGORITHMS[name]
    folder.parent.mkdir(parents=True, exist_ok=True)
    data = folder.with_name("data.jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {
        "algorithm": algorithm,
        "data": {"jsonl": {"uri": data.as_uri()}},
        "optimizer": {"adamw": {"learningRate": "1e-3"}},
        "maxSteps": 3,
    }
    return build_config(folder, model, train)


@pytest.fixture(scope="module", params=ALGORITHMS)
def run(request, tiny_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "tiny-1"
    record(configure(request.param, tiny_model, folder))
    return folder


def test_every_step_meets_its_digest(run):
    assert [line["equal"] for line in replay_recorded(run)] == [True] * 4


def test_one_batch_says_what_the_step_said(run):
    found = inspect_batch(run, 2)
    with LedgerReader(run / "ledger.db") as ledger:
        expected = ledger.steps()[1].metrics

    assert {name: expected[name] for name in found["metrics"]} == found["metrics"]
    assert found["not_finite"] == []
    assert len(found["samples"]) == 4
    for line in found["samples"]:
        assert line["completion"].startswith(("chosen: ", "good: ", "bad: "))
        assert line["num_tokens"] > 0


def test_samples_are_the_rows_with_what_they_teach(run):
    done = CliRunner().invoke(app, ["runs", "samples", str(run), "--step", "1", "--output", "json"])

    rows = json.loads(done.stdout)
    assert len(rows) == 4
    for row in rows:
        assert row["chosen"] is not None or row["label"] is not None
        assert row["prompt"] == json.loads(row["row"])["prompt"]
    text = CliRunner().invoke(app, ["runs", "samples", str(run), "--step", "1"])
    assert "losses of single rows are not recorded" in text.stderr


def test_rows_are_exported_with_both_answers_or_the_label(run, tmp_path):
    [(path, rows)] = export_run(run, tmp_path, ["samples"], "parquet").values()

    found = pq.read_table(path).to_pylist()
    assert rows == 12
    assert {row["prompt"] for row in found} == {row["prompt"] for row in PAIRS}
    for row in found:
        half = int(row["prompt"].partition("+")[0])
        if row["chosen"] is None:
            assert row["label"] == (row["answer"] == str(2 * half))
        else:
            assert (row["chosen"], row["rejected"]) == (str(2 * half), str(2 * half + 1))


def test_steps_are_profiled(run, tmp_path):
    found = profile_steps(run, after=1, num_steps=1, trace=tmp_path / "trace.json")

    assert {"forward and loss", "optimizer"} <= {one["phase"] for one in found["phases"]}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_tensor_that_went_nan_is_named(name, tiny_model, tmp_path):
    broken = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    tensors = load_weights(broken / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = math.nan
    (broken / "model.safetensors").unlink()
    save_weights(tensors, broken / "model.safetensors")
    folder = tmp_path / "tiny-1"

    with pytest.raises(RunFailed, match=r"step 1: .*not finite.*rollout debug one-batch"):
        record(configure(name, broken, folder))

    found = inspect_batch(folder, 1)
    assert found["committed"] is False
    assert found["not_finite"][:2] == [
        "weight model.layers.1.mlp.down_proj.weight",
        "output of model.layers.1.mlp.down_proj",
    ]
    assert any(one.startswith("loss term ") for one in found["not_finite"])
