"""A run's learner, taken again from its ledger: equal where nothing changed, and told where it did."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from debug_kit import GRPO, build_config, change_config, fingerprint, record
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.debug.replay import replay_recorded
from rollout.errors import SpecError, StoreError
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.weights.digest import load_weights, save_weights


def verdicts(folder: Path, **options) -> dict[int, bool]:
    return {line["step"]: line["equal"] for line in replay_recorded(folder, **options)}


@contextmanager
def others_drawing() -> Iterator[None]:
    """Another thread draws from the process's generators all the time, as clients do before they try again."""
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            random.random()
            np.random.random()
            time.sleep(0.0005)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def set_learning_rate(config: dict) -> None:
    config["spec"]["train"]["optimizer"]["adamw"]["learningRate"] = "2e-3"


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_every_step_meets_its_digest_and_the_run_stays_as_it_was(algorithm, request) -> None:
    folder = request.getfixturevalue(f"{algorithm}_run")
    before = fingerprint(folder)
    lines = list(replay_recorded(folder))
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert all(line["equal"] for line in lines)
    with LedgerReader(folder / "ledger.db") as ledger:
        steps = ledger.steps()
    assert [line["chain"] for line in lines[1:]] == [step.chain for step in steps]
    for line, step in zip(lines[1:], steps, strict=True):
        assert line["loss"] == step.metrics["loss"]
        assert line["gradient_norm"] == step.metrics["gradient_norm"]
    assert fingerprint(folder) == before


def test_a_client_that_tries_again_beside_the_learner_changes_no_chain(sft_run) -> None:
    with others_drawing():
        lines = list(replay_recorded(sft_run))
    assert [line["equal"] for line in lines] == [True] * 6


def test_a_flipped_weight_of_the_model_differs_from_the_start(grpo_run, tiny_model, tmp_path):
    changed = tmp_path / "model"
    shutil.copytree(tiny_model, changed)
    tensors = load_weights(changed / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][0, 0] = -tensors[name][0, 0]
    (changed / "model.safetensors").unlink()
    save_weights(tensors, changed / "model.safetensors")
    change_config(grpo_run, lambda c: c["resolved"].update(modelPath=str(changed)))
    assert verdicts(grpo_run) == dict.fromkeys(range(6), False)
    # An anchor holds the weights themselves: from there on the model's file has no say.
    assert verdicts(grpo_run, after=3) == {2: True, 3: True, 4: True, 5: True}


def test_another_learning_rate_differs_from_the_first_step(grpo_run) -> None:
    change_config(grpo_run, set_learning_rate)
    lines = list(replay_recorded(grpo_run, steps_max=2))
    assert [line["equal"] for line in lines] == [True, False, False]
    assert not lines[1]["weights_equal"]
    assert lines[1]["chain"] != lines[1]["committed_chain"]


def test_another_horizon_differs_from_the_step_where_it_first_matters(grpo_run) -> None:
    def set_horizon(config: dict) -> None:
        config["spec"]["train"]["schedule"]["cosine"]["horizonSteps"] = 10

    # The decay starts at step 1 with the full rate, so the second step is the first to differ.
    change_config(grpo_run, set_horizon)
    assert verdicts(grpo_run, steps_max=2) == {0: True, 1: True, 2: False}


def test_another_spec_digest_differs_in_the_chain_alone(grpo_run) -> None:
    change_config(grpo_run, lambda c: c.update(specDigest="blake3:" + "1" * 64))
    first, second = replay_recorded(grpo_run, steps_max=1)
    assert (first["weights_equal"], first["chain_equal"]) == (True, False)
    assert (second["weights_equal"], second["chain_equal"]) == (True, False)


def test_a_replay_begins_at_the_newest_anchor_before_the_step_asked_for(grpo_run) -> None:
    assert verdicts(grpo_run, after=4) == {4: True, 5: True}
    assert verdicts(grpo_run, after=3, steps_max=1) == {2: True, 3: True}
    assert verdicts(grpo_run, after=1, steps_max=1) == {0: True, 1: True}


def test_an_anchor_without_its_objects_is_passed_over(grpo_run) -> None:
    manifest = json.loads((grpo_run / "snapshots" / "step-000004.json").read_text())
    FilesystemStore(grpo_run / "objects").delete(manifest["objects"]["optimizer"])
    assert verdicts(grpo_run, after=4, steps_max=1) == {2: True, 3: True}


def test_a_damaged_anchor_is_refused(grpo_run) -> None:
    manifest = json.loads((grpo_run / "snapshots" / "step-000004.json").read_text())
    path = FilesystemStore(grpo_run / "objects").path(manifest["objects"]["optimizer"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StoreError, match="damaged"):
        list(replay_recorded(grpo_run, after=4))


def test_past_a_fork_the_replay_goes_on_from_the_forks_own_anchor(tiny_model, tmp_path) -> None:
    folder = tmp_path / "tiny-1"
    config = build_config(folder, tiny_model, {**GRPO, "maxSteps": 4})
    record(config)
    manifest = json.loads((folder / "snapshots" / "step-000004.json").read_text())
    FilesystemStore(folder / "objects").delete(manifest["objects"]["optimizer"])
    # Another rate from the anchor of step 2 on: step 3 does not repeat itself, a lineage is opened there.
    other = build_config(
        folder, tiny_model, {**GRPO, "optimizer": {"adamw": {"learningRate": "2e-3"}}}
    )
    record(other.model_copy(update={"spec_digest": config.spec_digest}))
    with LedgerReader(folder / "ledger.db") as ledger:
        assert [step.lineage for step in ledger.steps()] == [0, 0, 0, 1, 1]
    expected = {0: True, 1: False, 2: False, 3: False, 4: True, 5: True}
    assert verdicts(folder) == expected


def test_a_run_without_its_model_says_so(grpo_run) -> None:
    change_config(grpo_run, lambda c: c["resolved"].update(modelPath="/nowhere"))
    with pytest.raises(SpecError, match="/nowhere is not a folder"):
        list(replay_recorded(grpo_run))


def test_the_command_says_equal_and_exits_with_0(grpo_run) -> None:
    done = CliRunner().invoke(app, ["debug", "train-only", str(grpo_run), "--steps", "2"])
    assert done.exit_code == 0, done.output
    assert "every step met its recorded digest" in done.stdout
    assert "STEP" in done.stdout


def test_the_command_names_the_first_step_that_differs_and_exits_with_1(grpo_run) -> None:
    change_config(grpo_run, set_learning_rate)
    done = CliRunner().invoke(app, ["debug", "train-only", str(grpo_run), "--steps", "2"])
    assert done.exit_code == 1
    assert "DIFFER from step 1 on" in done.stdout
    assert "weights and chain" in done.stdout


def test_the_commands_json_is_one_document(grpo_run) -> None:
    words = ["debug", "train-only", str(grpo_run), "--from", "5", "--output", "json"]
    done = CliRunner().invoke(app, words)
    found = json.loads(done.stdout)
    assert found["equal"] is True
    assert [line["step"] for line in found["steps"]] == [5]
