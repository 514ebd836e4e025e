"""The learner's random state: seeded anew for every step, captured, restored.

Python, numpy and torch (and the device) are seeded from the run's seed, the step and the rank, so what
a step draws depends on nothing that happened before it in the process.

Python's and numpy's generators are shared by every thread of a process: a client that waits a moment before it tries
again draws from them, whatever the learner does. So the chain names them as the step was given them, and torch's, from
which models draw, as the step left them.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import torch
from blake3 import blake3

from rollout.seeds import derive_seed


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed every generator for one step."""
    noise = _noise(seed, step, rank)
    random.seed(noise)
    np.random.seed(noise & 0xFFFFFFFF)
    torch.default_generator.manual_seed(noise)
    if device.type == "cuda":
        torch.cuda.manual_seed(noise)


def capture(device: torch.device) -> bytes:
    """All generators' states, as msgpack."""
    return _encode(random.getstate(), np.random.get_state(), device)


def restore(data: bytes, device: torch.device) -> None:
    """Put back what ``capture`` took."""
    state = msgspec.msgpack.decode(data)
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if device.type == "cuda" and "cuda" in state:
        saved = torch.frombuffer(bytearray(state["cuda"]), dtype=torch.uint8)
        torch.cuda.set_rng_state(saved, device)


def digest(seed: int, step: int, rank: int, device: torch.device) -> bytes:
    """32 bytes over the generators of ``step``: Python's and numpy's as seeded for it, torch's as they are now."""
    noise = _noise(seed, step, rank)
    python, numpy = random.Random(noise), np.random.RandomState(noise & 0xFFFFFFFF)
    return blake3(_encode(python.getstate(), numpy.get_state(), device)).digest()


def _noise(seed: int, step: int, rank: int) -> int:
    return derive_seed(seed, "learner", step, rank)


def _encode(python: tuple[Any, ...], numpy: Any, device: torch.device) -> bytes:
    name, keys, position, has_gauss, gauss = numpy
    state: dict[str, Any] = {
        "python": python,
        "numpy": [name, np.asarray(keys).tobytes(), position, has_gauss, gauss],
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return msgspec.msgpack.encode(state)
