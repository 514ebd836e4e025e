"""The share of a device that a vLLM server takes at its start and keeps, also where others stand on the device.

It does not sleep while a learner trains: both hold their memory at once, and the share has to leave the learner its room.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rollout_api.checks.accelerators.memory import HEADROOM, KV_SEQUENCES, Memory
from rollout_api.v1alpha1.run import RolloutRunSpec

FIELD = "actors.engine.vllm.gpuMemoryUtilization"


def share_of(spec: RolloutRunSpec) -> float:
    """Of each of its devices' memory, what vLLM takes; 0 for an engine that takes what it needs, or that has no device."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    if vllm is None or spec.actors.accelerator is None:
        return 0.0
    return float(vllm.gpu_memory_utilization)


def taken(spec: RolloutRunSpec, needed: Memory, device_bytes: int) -> Memory:
    """What an engine that needs so much does hold of a device: what vLLM has beside its weights is all cache."""
    held = int(share_of(spec) * device_bytes)
    if not held:
        return needed
    weights = dict(needed.parts)["weights"]
    return replace(needed, parts=(("weights", weights), ("KV cache", max(0, held - weights))))


def largest_share(device_bytes: int, others: int, engines: int) -> float:
    """In hundredths, rounded down: what each of ``engines`` may take beside ``others`` bytes; 0 where nothing is left."""
    left = device_bytes * HEADROOM - others
    return max(0, math.floor(left / engines / device_bytes * 100)) / 100


def least_share(device_bytes: int, needed: Memory) -> float:
    """In hundredths, rounded up: what a server must take to start, its weights and the cache of one sequence."""
    return math.ceil(least_bytes(needed) / device_bytes * 100) / 100


def least_bytes(needed: Memory) -> int:
    """Weights, and the cache of one of the sequences that are planned with."""
    parts = dict(needed.parts)
    return parts["weights"] + parts["KV cache"] // KV_SEQUENCES
