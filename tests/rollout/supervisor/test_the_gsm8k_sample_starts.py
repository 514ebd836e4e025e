"""The cluster sample's own file, run on this machine: local servers stand for the services that it names, and what must differ is listed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "objects"))
sys.path.append(str(Path(__file__).parents[1] / "ledger"))

import objects_kit as kit
from hub_stand_in import place_gsm8k, place_model
from postgres_server import make_server, why_not
from ruamel.yaml import YAML
from safetensors.torch import load_file

from rollout.ledger.opening import DSN_VARIABLE

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "gsm8k-grpo"
BUCKET = "research-runs"
CHANGED = {
    "actors.accelerator": ("null", "no accelerator is here"),
    "learner.accelerator": ("null", "no accelerator is here"),
    "actors.replicas": ("1", "one machine has no room for eight vLLM servers"),
    "learner.nodes": ("1", "this is one machine"),
    "learner.processesPerNode": ("2", "one machine has no room for sixteen ranks; two still shard"),
    "train.maxSteps": ("3", "the least that maxStaleness 2 allows; 500 take days"),
    "train.sampling.maxNewTokens": ("6", "a random model never ends; 1024 tokens each take hours"),
    "tracking[0].wandb.mode": ("Offline", "there is no W&B server to be had locally"),
}
"""What the file cannot say on one machine without accelerators: the value here, and why."""
QUICKER = {
    "actors.engine": ("{embedded: {}}", "vLLM takes half a minute to start; the slow test has it"),
    "train.algorithm.grpo.promptsPerStep": ("4", "512 samples a step are the slow test's"),
    "train.algorithm.grpo.groupSize": ("4", "512 samples a step are the slow test's"),
    "evaluations[0].maxPrompts": ("4", "248 questions are the slow test's"),
}
"""What a test of seconds leaves to the slow one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """What answers for the services that the sample names, and the environment that leads there."""

    hub_model: Path
    bucket_url: str
    environment: Mapping[str, str]


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A hub's cache, a bucket, a Postgres and the ConfigMap's file: the manifest names them as in a cluster."""
    if why_not():
        pytest.skip(why_not())
    model = read_sample()["model"]
    place_gsm8k(tmp_path / "hub")
    placed = place_model(tmp_path / "hub", model["uri"].removeprefix("hf://"), model["revision"])
    (tmp_path / "my-rewards").mkdir()
    shutil.copy(SAMPLE / "my_rewards.py", tmp_path / "my-rewards")
    kit.set_credentials(monkeypatch)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / "s3").mkdir()
    server = make_server()
    try:
        with kit.s3_server(tmp_path / "s3") as url:
            kit.s3_client(url).create_bucket(Bucket=BUCKET)
            environment = build_environment(tmp_path, url, server.dsn)
            yield StandIns(hub_model=placed, bucket_url=url, environment=environment)
    finally:
        server.close()


def build_environment(folder: Path, bucket_url: str, dsn: str) -> dict[str, str]:
    """A process's variables where the sample's services are those of ``folder``, ``bucket_url`` and ``dsn``."""
    paths = [os.environ.get("PYTHONPATH", ""), str(folder / "my-rewards")]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "WANDB_"))}
    return {
        **kept,
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_TOKEN": "of-secret-hf",
        "AWS_ENDPOINT_URL": bucket_url,
        DSN_VARIABLE: dsn,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def read_sample() -> dict:
    return YAML(typ="safe", pure=True).load(SAMPLE / "run.yaml")["spec"]


def run_sample(stand_ins: StandIns, folder: Path, changed: Mapping[str, tuple[str, str]]) -> dict:
    """``rollout run`` of the file in the repository; what the run came to."""
    given = [f"--set={path}={value}" for path, (value, _) in changed.items()]
    argv = [sys.executable, "-m", "rollout", "run", "-f", str(SAMPLE / "run.yaml")]
    argv += ["--run-dir", str(folder), *given]
    env = dict(stand_ins.environment)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "result.json").read_text())


def test_the_sample_is_valid_as_a_folder_and_is_planned_without_a_network() -> None:
    for words in (["validate"], ["plan", "--offline"]):
        argv = [sys.executable, "-m", "rollout", *words, "-f", str(SAMPLE)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({**CHANGED, **QUICKER}, id="quicker"),
        pytest.param(CHANGED, id="whole", marks=[pytest.mark.slow, pytest.mark.vllm]),
    ],
)
def test_the_file_itself_trains_a_sharded_adapter_from_and_into_what_it_names(
    stand_ins: StandIns, tmp_path: Path, changed: Mapping[str, tuple[str, str]]
) -> None:
    folder = tmp_path / "run"
    result = run_sample(stand_ins, folder, changed)

    assert result["step"] == 3
    assert [one["step"] for one in result["evaluations"]] == [0, 3]
    config = json.loads((folder / "worker.json").read_text())
    assert config["resolved"]["modelPath"] == str(stand_ins.hub_model)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert set(steps[-1]["reward_by_source"]) == {"math-verify", "brevity"}
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert any(bool(tensor.any()) for name, tensor in adapter.items() if "lora_B" in name)

    listed = kit.s3_client(stand_ins.bucket_url).list_objects_v2(Bucket=BUCKET)
    assert listed["KeyCount"] > 0
    assert not (folder / "ledger.db").exists()
    assert list((folder / "tracking" / "wandb").rglob("*.wandb"))
