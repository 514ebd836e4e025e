"""Reports of runs that never were: every field of a report, small."""

from __future__ import annotations

from typing import Any

from rollout.report.data import ReportInput


def make_step(step: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "step": step,
        "lineage": 0,
        "reward": step / 100,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "reward_by_source": {"exact-match": step / 100},
        "loss": -0.01,
        "num_groups": 8,
        "zero_variance_share": 0.25,
        "tokens_per_second": 1000.0,
        "phase_seconds": {"wait": 0.2, "train": 0.5, "publish": 0.2, "commit": 0.1},
        "chain": f"c{step}",
    }
    return {**fields, **changes}


def make_row(step: int, value: float, **changes: Any) -> dict[str, Any]:
    fields = {
        "name": "sums",
        "split": "report",
        "step": step,
        "metric": "accuracy",
        "value": value,
        "low": max(0.0, value - 0.1),
        "high": min(1.0, value + 0.1),
        "num_prompts": 100,
    }
    return {**fields, **changes}


def make_sample(completion: str, reward: float, step: int) -> dict[str, Any]:
    return {
        "prompt": "1+2=",
        "answer": "003",
        "completion": completion,
        "reward": reward,
        "versions": [step],
    }


def make_report(**changes: Any) -> ReportInput:
    fields: dict[str, Any] = {
        "name": "adder",
        "uid": "u",
        "outcome": "Succeeded",
        "reason": "20 steps committed",
        "grade": "Exact",
        "algorithm": "GRPO",
        "model": "rollout://tiny-adder",
        "spec": {"seed": 0},
        "steps": [make_step(step) for step in range(1, 21)],
        "evaluations": [make_row(0, 0.3), make_row(20, 0.8)],
        "before": [make_sample("012", 0.0, 0)],
        "after": [make_sample("003", 1.0, 20)],
        "dispositions": {"consumed": 1280, "pending": 0},
        "chain": "blake3:abc",
        "wall_seconds": 61.4,
        "versions": {"python": "3.11"},
    }
    return ReportInput(**{**fields, **changes})
