"""What others may see of, and say to, a generation that runs in the engine's thread.

Written by that thread, read and asked by the event loop's: single assignments only, so that a reader
sees a batch as it was or as it is. Asking is heard at the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollout.seams import SampleProgress
from rollout.types import GenerateRequest

QUEUED = SampleProgress(state="queued")
Look = Callable[[], list[list[SampleProgress]]]


class GenerationWatch:
    """One call of ``generate``. ``asked``: samples are to come back as they stand."""

    def __init__(self, requests: Sequence[GenerateRequest]) -> None:
        self.asked = False
        self._states = [[QUEUED] * len(request.seeds) for request in requests]
        self._batch: tuple[tuple[int, ...], Look] | None = None

    def begin(self, indices: tuple[int, ...], look: Look) -> None:
        """The requests ``indices`` are being decoded; ``look`` says how far they are."""
        self._batch = (indices, look)

    def end(self) -> None:
        """The batch is done, as ``look`` has it now."""
        for index, states in self._seen():
            self._states[index] = states
        self._batch = None

    def look(self) -> tuple[tuple[SampleProgress, ...], ...]:
        """Every sample of every request."""
        states = list(self._states)
        for index, seen in self._seen():
            states[index] = seen
        return tuple(map(tuple, states))

    def _seen(self) -> list[tuple[int, list[SampleProgress]]]:
        batch = self._batch
        return [] if batch is None else list(zip(batch[0], batch[1](), strict=False))
