"""A learner's settings from a manifest, as a run would take them: presets, checks, resolution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.learner.config.policy import PolicySettings
from rollout.learner.objectives.registry import build_settings
from rollout_api import parse_run, resolve
from rollout_api.checks import check_document
from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64


def policy_settings_of(
    folder: Path,
    preset: str | None = None,
    grpo: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
) -> PolicySettings:
    """What ``preset`` and the fields given beside it make of the GRPO family, on 8 tokens at most."""
    run = _run(preset, grpo or {}, train or {})
    assert [p for p in check_document(run) if p.severity == "error"] == []
    config = WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": resolve(parse_run(run).spec).spec.model_dump(mode="json", exclude_none=True),
            "resolved": {
                "modelPath": str(folder),
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
            },
            "layout": {
                "runDir": str(folder),
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": str(folder),
                "objectsDir": str(folder),
                "ledgerPath": str(folder),
            },
        }
    )
    found = build_settings(config).algorithm
    assert isinstance(found, PolicySettings)
    return found


def _run(preset: str | None, grpo: Mapping[str, Any], train: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "model": {"uri": "rollout://tiny-qwen2"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 4, **grpo}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": 8},
            "maxSteps": 3,
            **train,
        },
    }
    if preset is not None:
        spec["preset"] = preset
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "a"},
        "spec": spec,
    }
