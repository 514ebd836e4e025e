"""The run that sweeps of tests on one machine are made of: a tiny model, and a reward in a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MODEL = "rollout://tiny-qwen2?hidden=32&layers=1&heads=2&kv_heads=1&intermediate=32&context=64"
ENVIRONMENT = {"builtin": {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}}


def write_tiny_run(
    folder: Path, rewards: str, function: str, *, train: dict[str, Any], **spec: Any
) -> None:
    """``tiny.yaml`` with ``train`` and ``spec`` as asked for, and ``mine.py``, whose ``function`` is its reward."""
    whole = {
        "seed": 3,
        "model": {"uri": MODEL},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": ENVIRONMENT,
            "rewards": [{"python": {"path": "mine.py", "function": function}, "weight": 1}],
            "sampling": {"maxNewTokens": 3},
            **train,
        },
        **spec,
    }
    run = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "tiny"},
        "spec": whole,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(run, sort_keys=False))
    (folder / "mine.py").write_text(rewards)
