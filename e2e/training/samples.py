"""The sample that is trained, in pods as on one machine, and the runtime that it names."""

from typing import Any

import yaml

from cluster.paths import REPOSITORY
from runs import lay_over

SAMPLES = REPOSITORY / "manifests" / "samples"
SAMPLE = SAMPLES / "arithmetic-in-pods"
ROWS = SAMPLES / "data" / "addition" / "worked-sums.jsonl"
"""Of this machine's environment, which the runtime mounts into every pod."""


def build_manifest(**changes: Any) -> dict[str, Any]:
    """The arithmetic sample with vLLM and two learner pods, and `changes` laid over its spec."""
    return lay_over(yaml.safe_load((SAMPLE / "run.yaml").read_text()), {"spec": changes})


def build_runtime(**changes: Any) -> dict[str, Any]:
    """The runtime beside it, and `changes` laid over its spec."""
    return lay_over(yaml.safe_load((SAMPLE / "runtime.yaml").read_text()), {"spec": changes})


def build_endpoint(**changes: Any) -> dict[str, Any]:
    """The sample that serves a small model, and `changes` laid over its spec."""
    text = (SAMPLES / "endpoint.yaml").read_text()
    return lay_over(yaml.safe_load(text), {"spec": changes})


def build_small_run(name: str, train: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A run of a tiny model that the embedded engine samples, on the runtime `cpu`; `spec` wins, and needs a `model`."""
    given = {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
        "train": train,
        "actors": {"engine": {"embedded": {}}},
        **spec,
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    return {**head, "metadata": {"name": name}, "spec": given}


def build_taught_run(name: str, runtime: str, steps: int, **changes: Any) -> dict[str, Any]:
    """A run of SFT, which has no actors: a small machine has time for servers beside it. Each step changes the weights."""
    train = {
        "algorithm": {"sft": {"batchSize": 8, "maxLength": 32}},
        "data": {"jsonl": {"uri": f"file://{ROWS}"}},
        "maxSteps": steps,
    }
    spec = {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": runtime},
        "seed": 7,
        "model": {"uri": "rollout://tiny-adder?steps=0"},
        "train": train,
        **changes,
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    return {**head, "metadata": {"name": name}, "spec": spec}


def build_saved_run(name: str, steps: int, anchor: int, **changes: Any) -> dict[str, Any]:
    """A small run in Exact of so many steps, with `anchor` of them between anchors, and `changes` in its spec."""
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": steps,
    }
    spec = {
        "seed": 7,
        "model": {"uri": "rollout://tiny-adder?steps=0"},
        "numerics": {"mode": "Exact"},
        "snapshots": {"everySteps": anchor},
    }
    return build_small_run(name, train, **{**spec, **changes})
