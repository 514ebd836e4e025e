"""The sample that is trained, in pods as on one machine, and the runtime that it names."""

from typing import Any

import yaml

from cluster.paths import REPOSITORY
from runs import lay_over

SAMPLE = REPOSITORY / "manifests" / "samples" / "arithmetic-in-pods"


def build_manifest(**changes: Any) -> dict[str, Any]:
    """The arithmetic sample with vLLM and two learner pods, and `changes` laid over its spec."""
    return lay_over(yaml.safe_load((SAMPLE / "run.yaml").read_text()), {"spec": changes})


def build_runtime(**changes: Any) -> dict[str, Any]:
    """The runtime beside it, and `changes` laid over its spec."""
    return lay_over(yaml.safe_load((SAMPLE / "runtime.yaml").read_text()), {"spec": changes})


def build_endpoint(**changes: Any) -> dict[str, Any]:
    """The sample that serves a small model, and `changes` laid over its spec."""
    path = REPOSITORY / "manifests" / "samples" / "endpoint.yaml"
    return lay_over(yaml.safe_load(path.read_text()), {"spec": changes})


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
