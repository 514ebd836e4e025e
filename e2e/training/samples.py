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
