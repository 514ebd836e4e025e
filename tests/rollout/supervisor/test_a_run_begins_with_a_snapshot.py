"""A run that begins with a snapshot ends as the one that was never disturbed, elsewhere and under another name."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

ADDER = "rollout://tiny-adder?steps=0"
ROWS = [
    {"prompt": f"1{n}+11=", "chosen": f"0{21 + n}", "rejected": "111", "answer": "021"}
    for n in range(8)
]
SAMPLED = {
    "environment": {
        "builtin": {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}
    },
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 4},
}
ONLINE = {"grpo": {"promptsPerStep": 4, "groupSize": 2}, "ppo": {"promptsPerStep": 4}}
OFFLINE = {"batchSize": 4, "maxLength": 64}
QUICK, LONG = ("grpo",), ("sft", "rm", "dpo", "ppo")


def write(folder: Path, algorithm: str, name: str = "small", **train: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    online = algorithm in ONLINE
    more = SAMPLED if online else {"data": {"jsonl": {"uri": "rows.jsonl"}}}
    spec = {
        "seed": 7,
        "model": {"uri": ADDER},
        "train": {
            "algorithm": {algorithm: ONLINE.get(algorithm, OFFLINE)},
            "maxSteps": 10,
            **more,
            **train,
        },
        "numerics": {"mode": "Exact"},
        "snapshots": {"everySteps": 5},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**head, "metadata": {"name": name}, "spec": spec}))
    return path


def rollout(folder: Path, *words: str, user: str = "me") -> subprocess.CompletedProcess[str]:
    """A command of the installation of ``user``, whose runs lie in ``folder``."""
    mine = {
        "ROLLOUT_HOME": str(folder / "runs"),
        "XDG_CONFIG_HOME": str(folder.parent / f"config-{user}"),
    }
    return run_rollout(*words, folder=folder, environment=mine)


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def finished(folder: Path, *words: str, user: str = "me") -> dict[str, Any]:
    return json.loads(ok(rollout(folder, *words, "--output", "json", user=user)))


@pytest.mark.parametrize(
    "algorithm", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_at_step_5_of_10_and_ends_with_the_same_chain(tmp_path, algorithm):
    """Quick without rewards: the run below, and snapshots/test_a_run_of_a_cluster_begins_with_a_snapshot.py."""
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, algorithm)
    whole = finished(here, "run", "-f", "small.yaml")
    made = ok(rollout(here, "snapshot", "create", "small-1", "--step", "5")).strip()
    write(there, algorithm, "other")
    place = str(here / "runs" / "small-1" / "objects")

    again = finished(there, "run", "-f", "other.yaml", "--resume", made, "--object-path", place)

    assert whole["step"] == again["step"] == 10
    assert again["chain"] == whole["chain"]
    told = finished(here, "snapshot", "verify-resume", made)
    assert (told["equal"], told["from_step"], len(told["steps"])) == (True, 5, 5)
    assert told["steps"][-1]["chain"] == whole["chain"]
    assert again["lineage"] == whole["lineage"] == 0
    assert again["dispositions"] == whole["dispositions"]
    assert json.loads((there / "runs/other-1/restored.json").read_text())["snapshot"] == made
    assert (
        json.loads((there / "runs/other-1/worker.json").read_text())["resolved"]["grade"] == "Exact"
    )


def test_that_its_manifest_names_where_the_run_that_made_it_is_gone(tmp_path):
    """From a folder as from a bucket; who is not trusted is told before anything begins."""
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, "sft")
    whole = finished(here, "run", "-f", "small.yaml")
    made = ok(rollout(here, "snapshot", "create", "small-1", "--step", "5")).strip()
    ok(rollout(here, "snapshot", "copy", made, "--to", str(there / "store")))
    shutil.rmtree(here)
    path = write(there, "sft", "other")
    named = json.loads(path.read_text())
    uri = f"{(there / 'store').as_uri()}/snapshots/manifests/{made}.json"
    named["spec"]["restoreFrom"] = {"object": {"uri": uri, "digest": f"blake3:{made}"}}
    path.write_text(json.dumps(named))

    stranger = rollout(there, "run", "-f", "other.yaml", user="you")
    assert stranger.returncode == 2
    assert "spec.restoreFrom.object" in stranger.stderr
    assert "does not trust" in stranger.stderr
    assert not list((there / "runs").glob("other-*"))

    again = finished(there, "run", "-f", "other.yaml")
    assert (again["step"], again["chain"]) == (10, whole["chain"])
    assert json.loads((there / "runs/other-1/restored.json").read_text())["snapshot"] == made


def test_in_place_its_own_run_goes_back_and_ends_with_the_same_chain(tmp_path):
    """Under its name and in its folder, as a lineage of its own; nobody else's run goes back to it."""
    write(tmp_path / "here", "grpo")
    here = tmp_path / "here"
    whole = finished(here, "run", "-f", "small.yaml")
    made = ok(rollout(here, "snapshot", "create", "small-1", "--step", "5")).strip()
    write(here, "grpo", "other", maxSteps=1)
    finished(here, "run", "-f", "other.yaml")

    anothers = rollout(here, "run", "-f", "other.yaml", "--resume", made, "--in-place")
    assert anothers.returncode == 2
    assert "small-1" in anothers.stderr
    unnamed = rollout(here, "run", "-f", "small.yaml", "--in-place")
    assert (unnamed.returncode, "--resume ID" in unnamed.stderr) == (2, True)

    again = finished(here, "run", "-f", "small.yaml", "--resume", made, "--in-place")
    assert [path.name for path in (here / "runs").glob("small-*")] == ["small-1"]
    assert (again["step"], again["chain"]) == (10, whole["chain"])
    assert (whole["lineage"], again["lineage"]) == (0, 1)
    assert again["dispositions"] == whole["dispositions"]
    config = json.loads((here / "runs/small-1/worker.json").read_text())
    assert config["resolved"]["grade"] == "Exact"
    assert finished(here, "run", "-f", "small.yaml", "--resume", "small-1") == again


def test_only_of_a_signer_that_is_trusted_and_only_as_it_was(tmp_path):
    """Everything that is refused is refused before anything begins; what may change costs the grade."""
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, "sft")
    finished(here, "run", "-f", "small.yaml")
    made = ok(rollout(here, "snapshot", "create", "small-1", "--step", "5")).strip()
    ok(rollout(here, "snapshot", "copy", made, "--to", str(there / "store")))
    lies = ("--resume", made, "--object-path", "store")
    write(there, "sft", "other")

    stranger = rollout(there, "run", "-f", "other.yaml", *lies, user="you")
    assert stranger.returncode == 2
    assert "does not trust" in stranger.stderr
    unknown = rollout(there, "run", "-f", "other.yaml", "--resume", "0" * 64)
    assert (unknown.returncode, unknown.stderr) == (2, f"error: snapshot not found: {'0' * 64}\n")

    optimizer = {"adamw": {"learningRate": "1e-4"}}
    write(there, "sft", "seeded", sampling={})
    changed = json.loads((there / "seeded.yaml").read_text())
    changed["spec"]["seed"] = 8
    (there / "seeded.yaml").write_text(json.dumps(changed))
    seeded = rollout(there, "run", "-f", "seeded.yaml", *lies)
    assert seeded.returncode == 2
    assert "spec.seed" in seeded.stderr
    assert not list((there / "runs").glob("seeded-*"))

    signer = json.loads(ok(rollout(here, "snapshot", "show", made)))["signer"]
    write(there, "sft", "tuned", optimizer=optimizer)
    tuned = finished(there, "run", "-f", "tuned.yaml", *lies, "--trust", signer, user="you")
    assert tuned["step"] == 10
    config = json.loads((there / "runs/tuned-1/worker.json").read_text())
    assert config["resolved"]["grade"] == "Logical"
    told = json.loads((there / "runs/tuned-1/restored.json").read_text())
    assert any(name.startswith("spec.train.optimizer") for name in told["changed"])
    again = ok(rollout(there, "snapshot", "create", "tuned-1", user="you")).strip()
    shown = json.loads(ok(rollout(there, "snapshot", "show", again, user="you")))
    assert (shown["grade"], shown["restored_from"], shown["trusted"]) == ("logical", made, True)
