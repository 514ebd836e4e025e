"""How a step is made repeatable: a CUDA graph, or a plain call where there is no device to capture on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

Step = Callable[[], None]


class Captured(Protocol):
    """A step that can be taken again."""

    def replay(self) -> None:
        """Take it."""
        ...


Capture = Callable[[Step, "Captured | None"], Captured]
"""Capture a step without taking it; what is captured may use the memory of another that is not dropped before."""


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A step called plainly."""

    replay: Step


def repeat_plainly(step: Step, beside: Captured | None = None) -> PlainStep:
    """The step itself: what graphs are compared with, and how steps run on a CPU."""
    del beside
    return PlainStep(step)


def capture_graph(step: Step, beside: Captured | None = None) -> torch.cuda.CUDAGraph:
    """A CUDA graph of ``step`` on this thread's device, where it has run once: all that is made on first use is there.

    Other threads may go on with the device meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    pool: Any = beside.pool() if isinstance(beside, torch.cuda.CUDAGraph) else None
    stream = _capture_stream(torch.cuda.current_device())
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph


@lru_cache(maxsize=64)
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One a device: products keep a workspace for every stream that they have seen."""
    return torch.cuda.Stream(device)
