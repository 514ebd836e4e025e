"""A Job of one pod that finds something out and ends: as the Jobs of snapshots and of endpoints' candidates are. Pure."""

from __future__ import annotations

from typing import Any

from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Manifest
from rollout_operator.run.render.volumes import Mount

TRIES_MAX = 100
"""The deadline ends it long before: pauses between pods grow to six minutes."""


def build_one_pod_job(meta: Manifest, template: Manifest, seconds: int, **more: Any) -> Manifest:
    """One pod at a time, the next one when the one before it has surely ended; no longer than ``seconds``."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": TRIES_MAX,
            "activeDeadlineSeconds": seconds,
            "podReplacementPolicy": "Failed",
            "template": template,
            **more,
        },
    }


def build_scratch() -> list[Mount]:
    """What such a pod may write to: gone with it."""
    return [
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
    ]
