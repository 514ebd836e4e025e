"""Valid manifests that between them hold every field: the base from which one field at a time is changed.

A new field needs nothing here when its parent stands in a base already; a new object is added to the base that
``rows.py`` names for its path.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

ROWS_URI = "rows.jsonl"
"""A file that the tests write into the folder they work in."""
MATCH = {
    "builtin": {"name": "exact-match", "parameters": [{"name": "ignoreCase", "value": "true"}]}
}
CLASS = "h100"
REQUIREMENT = {"key": "zone", "operator": "In", "values": ["a"]}
PODS_NEAR = {
    "labelSelector": {"matchLabels": {"app": "a"}, "matchExpressions": [REQUIREMENT]},
    "topologyKey": "kubernetes.io/hostname",
}
POD_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": [PODS_NEAR],
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 5, "podAffinityTerm": PODS_NEAR}
    ],
}
SECRET: Document = {"secretKeyRef": {"name": "s", "key": "k"}}
PODS: Document = {
    "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": SECRET}],
    "nodeSelector": {"zone": "a"},
    "tolerations": [
        {
            "key": "t",
            "operator": "Equal",
            "value": "v",
            "effect": "NoExecute",
            "tolerationSeconds": 5,
        }
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [REQUIREMENT]}]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 5, "preference": {"matchExpressions": [REQUIREMENT]}}
            ],
        },
        "podAffinity": POD_AFFINITY,
        "podAntiAffinity": POD_AFFINITY,
    },
    "labels": {"team": "a"},
    "annotations": {"note": "a"},
    "sharedMemory": "1Gi",
}
"""What a user may set on the pods of a role."""


def run(spec: Document) -> Document:
    """A RolloutRun."""
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "run"},
        "spec": spec,
    }


def online(algorithm: Document, train: Document | None = None, **spec: Any) -> Document:
    """A run that samples: 2 prompts a step of 4 samples where the algorithm does not say otherwise."""
    return run(
        {
            "model": {"uri": "rollout://tiny-qwen2"},
            "train": {
                "algorithm": algorithm,
                "environment": {"builtin": {"name": "arithmetic"}},
                "rewards": [MATCH],
                "sampling": {"maxNewTokens": 8},
                "optimizer": {"adamw": {"learningRate": "1e-2"}},
                "maxSteps": 3,
                **(train or {}),
            },
            **spec,
        }
    )


def offline(name: str, train: Document | None = None, **options: Any) -> Document:
    """A run that learns from rows, four a step."""
    return run(
        {
            "model": {"uri": "rollout://tiny-qwen2", "chatTemplate": "plain"},
            "train": {
                "algorithm": {name: {"batchSize": 4, **options}},
                "data": {"jsonl": {"uri": ROWS_URI}},
                "optimizer": {"adamw": {"learningRate": "1e-2"}},
                "maxSteps": 3,
                **(train or {}),
            },
        }
    )


def grpo(train: Document | None = None, spec: Document | None = None, **options: Any) -> Document:
    """GRPO in Exact unless ``spec`` says otherwise."""
    return online({"grpo": {"promptsPerStep": 2, "groupSize": 4, **options}}, train, **(spec or {}))


FAST = {"numerics": {"mode": "Fast"}}
DEVICES = {
    "actors": {
        **PODS,
        "replicas": 2,
        "engine": {
            "vllm": {"tensorParallel": 2, "extraArguments": [{"name": "block-size", "value": "16"}]}
        },
        "accelerator": {"className": CLASS, "count": 4},
    },
    "learner": {
        **PODS,
        "nodes": 2,
        "processesPerNode": 2,
        "accelerator": {"className": CLASS, "count": 4},
        "strategy": {"fsdp": {}},
    },
    "env": [{"name": "C", "value": "1"}, {"name": "D", "valueFrom": SECRET}],
}
"""A run in a cluster with every setting of its pods."""
