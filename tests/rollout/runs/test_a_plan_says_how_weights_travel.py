"""A plan says where actors patch new versions: in memory where all of them find room on the machine, else on disk."""

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.runs.plan.transfer import weights_transfer
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.v1alpha1.run import RolloutRunSpec

GIB = 1 << 30
MODEL = ModelFacts(
    num_parameters=GIB // 2,
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=64,
    vocab_size=256,
    context_length=512,
)
"""1 GiB in BFloat16."""
TRAIN = {
    "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 8},
    "maxSteps": 4,
}
DEVICES = (80 * GIB,)


def said(host_gib: float | None, *, model=MODEL, train=TRAIN, devices=DEVICES, **spec):
    document = {"model": {"uri": "rollout://tiny-adder", "dtype": "BFloat16"}, "train": train}
    facts = Facts(
        platform="local" if host_gib else "cluster",
        model=model,
        host_bytes=None if host_gib is None else int(host_gib * GIB),
        device_bytes=devices if host_gib else (),
    )
    return weights_transfer(RolloutRunSpec.model_validate(document | spec), facts)


@pytest.mark.parametrize(
    ("actors", "host_gib", "place"),
    [(1, 2.2, "memory"), (1, 2.1, "disk"), (4, 8.8, "memory"), (4, 8.6, "disk")],
)
def test_all_actors_together_take_half_of_the_memory_that_is_left_at_most(actors, host_gib, place):
    found = said(host_gib, actors={"replicas": actors})
    assert ("patched on disk" in found) == (place == "disk")
    assert "1,024.0 MiB" in found


def test_what_learner_and_engine_hold_without_devices_is_no_room():
    assert "patched in memory" in said(4)
    assert "patched on disk" in said(4, devices=())


def test_an_autoscaler_is_counted_with_all_that_it_may_start():
    assert "for 8 actors" in said(10, actors={"autoscale": {"min": 1, "max": 8}})


def test_in_a_cluster_no_memory_of_this_machine_is_counted():
    assert "in a folder of the actor's pod" in said(None)


def test_adapters_are_no_mirror():
    spec = RolloutRunSpec.model_validate(
        {
            "model": {"uri": "rollout://tiny-adder", "lora": {"rank": 8}},
            "train": TRAIN,
            "actors": {"engine": {"vllm": {}}},
        }
    )
    facts = Facts(platform="local", model=MODEL, host_bytes=64 * GIB)
    assert "each version is an adapter" in weights_transfer(spec, facts)


def test_a_run_without_actors_and_an_unknown_model_have_none():
    sft = {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "rows.jsonl"}}, "maxSteps": 4}
    assert said(64, train=sft) is None
    assert said(64, model=None) is None


def test_the_command_says_it_of_a_run(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: arithmetic}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 4
"""
    )
    done = CliRunner().invoke(app, ["plan", "-f", str(file), "--offline"])
    assert done.exit_code == 0, done.output
    assert (
        "  weights: whole versions are read where they are stored; what changed is" in done.output
    )
