"""The cluster sample, cut down to what a laptop has: an adapter over two FSDP2 ranks, asynchronous, its own rewards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from local_jobs import start_job
from ruamel.yaml import YAML
from safetensors.torch import load_file

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "gsm8k-grpo"
MODEL = "rollout://tiny-qwen2?hidden=64&layers=2&heads=2&kv_heads=1&intermediate=64&context=256"


def cut_down(folder: Path) -> dict:
    """The sample without its cluster: a tiny model, one machine, sixteen questions, two steps."""
    questions = [{"question": f"{n}+{n}=", "answer": f"#### {2 * n}"} for n in range(16)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "my_rewards.py").write_text((SAMPLE / "my_rewards.py").read_text())
    manifest = YAML(typ="safe", pure=True).load(SAMPLE / "run.yaml")
    spec = manifest["spec"]
    for name in ("runtimeRef", "queueName", "secretEnv", "storage", "tracking"):
        del spec[name]
    spec["code"] = {"path": str(folder)}
    del spec["model"]["revision"]
    spec["model"]["uri"] = MODEL
    train = spec["train"]
    train["algorithm"]["grpo"] |= {"promptsPerStep": 4, "groupSize": 4}
    hub = train["data"].pop("huggingFace")
    fields = {name: hub[name] for name in ("promptField", "answerField")}
    train["data"]["jsonl"] = {"uri": str(folder / "train.jsonl"), **fields}
    train["sampling"]["maxNewTokens"] = 6
    train["maxSteps"] = 2
    spec["actors"] = {"replicas": 1, "engine": {"embedded": {}}}
    del spec["learner"]["accelerator"]
    spec["learner"] |= {"nodes": 1, "processesPerNode": 2}
    suite = spec["evaluations"][0]["suite"]["builtin"]
    suite["parameters"] = [{"name": "uri", "value": str(folder / "train.jsonl")}]
    spec["evaluations"][0]["maxPrompts"] = 4
    return manifest


def test_the_sample_is_valid_as_a_folder_and_is_planned_without_a_network() -> None:
    for words in (["validate"], ["plan", "--offline"]):
        argv = [sys.executable, "-m", "rollout", *words, "-f", str(SAMPLE)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr


def test_the_sample_trains_a_sharded_adapter(tmp_path) -> None:
    manifest = cut_down(tmp_path)
    kept = manifest["spec"]
    assert kept["model"]["lora"] == {"rank": 16, "alpha": 32, "targets": ["Attention", "Mlp"]}
    assert kept["learner"]["strategy"] == {"fsdp": {}}
    assert kept["train"]["maxStaleness"] == 2
    assert kept["numerics"]["mode"] == "Fast"

    job = start_job(tmp_path / "runs", manifest=json.dumps(manifest))
    result = job.finish()

    assert result["step"] == 2
    adapter = load_file(job.run_dir / "adapter" / "adapter_model.safetensors")
    assert any(bool(tensor.any()) for name, tensor in adapter.items() if "lora_B" in name)
