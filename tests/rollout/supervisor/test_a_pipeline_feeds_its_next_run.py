"""Several runs in one file, functions given in memory, two ranks: the same supervisor."""

import json

import pytest
from local_jobs import EVEN, MANIFEST, members, start_job

import rollout
from rollout.rendering import build_renderer

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

WARM_UP = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: warm-up}
spec:
  model:
    uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"
    chatTemplate: plain
  train:
    algorithm: {sft: {batchSize: 8, maxLength: 48}}
    data: {jsonl: {uri: sums.jsonl, promptField: q, answerField: a}}
    optimizer: {adamw: {learningRate: "1e-3"}}
    maxSteps: 4
"""
BOTH = MANIFEST.replace(
    MANIFEST[MANIFEST.index("  model:") : MANIFEST.index("  train:")],
    "  model: {fromRun: {name: warm-up}}\n",
).replace("maxSteps: 12", "maxSteps: 3")


def write_sums(folder) -> None:
    lines = [json.dumps({"q": f"{a}+{b}=", "a": str(a + b)}) for a in range(10) for b in range(5)]
    (folder / "sums.jsonl").write_text("\n".join(lines))


def test_a_run_starts_from_what_the_one_before_produced(tmp_path):
    write_sums(tmp_path)
    job = start_job(tmp_path / "runs", manifest=f"{BOTH}\n---\n{WARM_UP}")

    job.finish()

    home = tmp_path / "runs"
    latest = json.loads((home / "warm-up-1" / "snapshots" / "Latest.json").read_text())
    produced = home / "warm-up-1" / "objects" / "blake3"
    digest = latest["version"]["object"].removeprefix("blake3:")
    first = json.loads((home / "small-1" / "worker.json").read_text())
    assert latest["step"] == 4
    assert (home / "small-1" / "model" / "model.safetensors").read_bytes() == (
        produced / digest[:2] / digest
    ).read_bytes()
    assert first["resolved"]["modelPath"] == str(home / "small-1" / "model")
    assert json.loads((home / "small-1" / "result.json").read_text())["step"] == 3
    assert build_renderer(home / "small-1" / "model").name == "plain"


@pytest.mark.slow
def test_a_finished_pipeline_is_not_run_again_when_resumed(tmp_path):
    write_sums(tmp_path)
    start_job(tmp_path / "runs", manifest=WARM_UP).finish()
    job = start_job(tmp_path / "runs", manifest=f"{WARM_UP}\n---\n{BOTH}", resume="Latest")

    job.finish()

    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["small-1", "warm-up-1"]
    assert job.said().count("running warm-up") == 1


def test_a_function_given_in_memory_is_the_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "small.yaml").write_text(MANIFEST)
    (tmp_path / "even.py").write_text(EVEN)
    wanted = 1 + 1  # closed over: pickled by value

    def threes(prompts, completions, rows):
        return [wanted * sum(token % 3 == 0 for token in c.token_ids) for c in completions]

    run = rollout.run(
        tmp_path / "small.yaml",
        set={"train.maxSteps": 2, "evaluations": []},
        rewards=[threes],
        progress=False,
    )

    rows = list(run.trajectories(step=1))
    assert run.exit_code == 0
    assert len(rows) == 16
    for row in rows:
        assert row["reward/threes"] == 2 * sum(token % 3 == 0 for token in row["token_ids"])


@pytest.mark.slow
def test_two_ranks_survive_the_loss_of_one(tmp_path):
    overrides = ["learner.processesPerNode=2", "evaluations=[]"]
    whole = start_job(tmp_path / "whole", overrides=overrides).finish()
    job = start_job(tmp_path / "runs", overrides=overrides)
    job.wait_until(lambda status: status.step >= 4)

    ranks = [p for p in members(job.run_dir) if p.environ().get("LOCAL_RANK") == "1"]
    ranks[0].kill()

    assert job.finish()["chain"] == whole["chain"]
    assert "learner died" in job.said()
    assert members(job.run_dir) == []
