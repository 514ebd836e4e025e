"""The weights of a snapshot are exported by its id, from wherever it lies, when the run itself has let them go."""

from __future__ import annotations

import json
import os

import pytest
from export_kit import FakeRun, make_run, moved, train
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SnapshotRefused, SpecError
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.snapshots.signing import key_path, open_signer
from rollout.weights.digest import digest_tensors, load_weights


@pytest.fixture(scope="module")
def weights(base_model):
    return train(base_model).weights


@pytest.fixture
def run(tmp_path, base_model, weights, monkeypatch) -> FakeRun:
    """Two steps, of the first of which there are an anchor and a snapshot."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = make_run(tmp_path, base_model, [weights])
    first = moved(weights, 0.1)
    made.commit(first, masters=first)
    return made


def snapshot(run: FakeRun) -> str:
    made = create_snapshot(RunDir(path=run.folder), open_signer(key_path(os.environ)))
    return made.manifest.id


def call(*words: str):
    return CliRunner().invoke(app, ["model", "export", *words], catch_exceptions=True)


def test_from_its_copy_where_the_run_has_let_them_go(run, tmp_path, weights):
    taken, store = snapshot(run), tmp_path / "store"
    copied = CliRunner().invoke(app, ["snapshot", "copy", taken, "--to", str(store)])
    assert copied.exit_code == 0, copied.output
    run.object(run.versions[-1].object).unlink()
    target = tmp_path / "home"

    assert isinstance(call("tiny-1", "--to", str(target)).exception, SpecError)
    done = call(taken, "--to", str(target), "--object-path", str(store), "--output", "json")

    assert done.exit_code == 0, done.output
    assert digest_tensors(load_weights(target / "model.safetensors")) == run.versions[-1].digest
    said = json.loads(done.stdout)
    assert (said["step"], said["uid"], said["chain"]) == (1, "u", "blake3:c1")
    again = call(taken, "--to", str(target), "--object-path", str(store), "--output", "json")
    assert json.loads(again.stdout)["was_there"]


def test_what_is_beside_it_is_refused_and_so_is_one_of_another_machine(run, tmp_path):
    taken, target = snapshot(run), str(tmp_path / "home")
    for words, told in (
        ((taken, "--step", "1"), "--step: a snapshot is of one step"),
        ((taken, "--best"), "--best: a snapshot is of one step"),
        (("tiny-1", "--object-path", str(run.folder)), "named by its id, not by tiny-1"),
        (("0" * 64,), "snapshot not found"),
    ):
        failed = call(*words, "--to", target).exception
        assert isinstance(failed, SpecError)
        assert told in str(failed)
    run.folder.rename(tmp_path / "elsewhere")
    failed = call(taken, "--to", target, "--object-path", str(tmp_path / "elsewhere/objects"))
    assert isinstance(failed.exception, SnapshotRefused)
    assert "is not of this machine" in str(failed.exception)
