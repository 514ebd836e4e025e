"""Whose turn it is on devices that the engines and the learner of a run share: engines' together, or the learner's alone.

A lock on a file, which the kernel takes back from whoever dies. Nothing here knows what a turn is taken for, or what
memory is: who gives a turn away has freed it before. Turns are not handed out in order; whoever works without an end
keeps others waiting, up to their bound.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollout_api.worker import WorkerConfig

TURN_FILE = "device.turn"
"""In the run's folder."""
TURN_SECONDS_MAX = 1500.0
"""Longest wait for a turn: below what the learner's ranks wait for each other."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds, and how to let some pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class DeviceTurn:
    """One process's part in it. ``alone``: nobody else has a turn then (the learner); else others like it may."""

    def __init__(
        self,
        path: Path,
        *,
        alone: bool,
        seconds_max: float = TURN_SECONDS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        self._seconds_max = seconds_max
        self._clock = clock or Clock()
        self._handle: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is this one's turn."""
        return self._handle is not None

    def take(self) -> None:
        """Return once it is this one's turn; blocks. Raises TimeoutError, which says how long was waited, and OSError."""
        if self.is_held:
            return
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait(handle)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def give(self) -> None:
        """End this one's turn; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _wait(self, handle: int) -> None:
        ends = self._clock.now() + self._seconds_max
        while True:
            try:
                fcntl.flock(handle, self._kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.now() >= ends:
                    raise TimeoutError(
                        f"the devices were in use by another process of the run for {self._seconds_max:.0f} s"
                        f" ({self._path})"
                    ) from None
                self._clock.sleep(POLL_SECONDS)
            else:
                return


def shared_turn(config: WorkerConfig, *, alone: bool) -> DeviceTurn | None:
    """A process's part in the run's turns, ``alone`` for the learner; None where every engine keeps its device."""
    vllm = config.spec.actors.chosen_engine.vllm
    if vllm is None or not vllm.sleep_level or config.spec.train is None:
        return None
    return DeviceTurn(Path(config.layout.run_dir) / TURN_FILE, alone=alone)
