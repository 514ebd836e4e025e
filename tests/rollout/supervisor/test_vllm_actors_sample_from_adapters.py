"""A LoRA run on vLLM publishes adapters alone, learns from them on policy, and feeds the run after it."""

import json
import re

import pytest
from local_jobs import MANIFEST, start_job

from rollout.objects.filesystem import FilesystemStore
from rollout.weights.numbers import read_tensors

pytestmark = [
    pytest.mark.process,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(3000),
]

OVERRIDES = [
    "actors.engine.vllm.maxNumSeqs=1",
    "model.lora.rank=4",
    "model.lora.alpha=8",
    "train.maxSteps=3",
    "snapshots.everySteps=1",
    "limits.noProgressSeconds=1500",
]
NEXT = re.sub(r"(?m)^  model: .*$", "  model: {fromRun: {name: small}}", MANIFEST).replace(
    "name: small}\nspec", "name: next}\nspec"
)
SECONDS_MAX = 1500.0


def finish(job) -> dict:
    code = job.wait(SECONDS_MAX)
    assert code == 0, f"exit code {code}\n{job.said()}\n{job.logs()}"
    return job.result()


def test_versions_are_adapters_and_what_was_sampled_is_what_was_learned_from(tmp_path):
    job = start_job(tmp_path / "runs", manifest=MANIFEST, overrides=OVERRIDES)
    result = finish(job)

    assert result["step"] == 3
    store = FilesystemStore(job.run_dir / "objects")
    for path in sorted((job.run_dir / "snapshots").glob("step-*.json")):
        version = json.loads(path.read_text())["version"]
        tensors = read_tensors(store.path(version["object"]))
        assert tensors
        assert all("lora_" in name for name in tensors)
    metrics = [
        json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(abs(one["mismatch_kl"]) for one in metrics if "mismatch_kl" in one) < 1e-5

    after = start_job(tmp_path / "runs", manifest=NEXT, overrides=["train.maxSteps=1"])
    finish(after)
    took_over = read_tensors(tmp_path / "runs" / "next-1" / "model" / "model.safetensors")
    assert not [name for name in took_over if "lora_" in name]
