"""The manifest that is trained: in pods as on one machine."""

from typing import Any

import yaml

from cluster.paths import REPOSITORY
from runs import lay_over

SAMPLE = REPOSITORY / "manifests" / "samples" / "arithmetic.yaml"
TOPOLOGY = {"actors": {"engine": {"vllm": {}}}, "learner": {"nodes": 2}}
"""A vLLM server beside its actor, and a learner of two ranks, in pods one each."""


def build_manifest(**changes: Any) -> dict[str, Any]:
    """The arithmetic sample with vLLM and two ranks, and `changes` laid over its spec."""
    manifest = yaml.safe_load(SAMPLE.read_text())
    return lay_over(manifest, {"spec": lay_over(TOPOLOGY, changes)})
