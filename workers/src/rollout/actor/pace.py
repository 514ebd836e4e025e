"""How fast one sample of this actor grows, from what the engine says at each heartbeat."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.protocol.messages import TaskProgress

NEWEST_SHARE = 0.5
"""Weight of the newest look in the running mean."""


class Pace:
    """``tokens_per_second`` of one sample under way; 0 before two looks at the same samples."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        self._last: tuple[float, dict[str, tuple[int, ...]]] | None = None

    def see(self, progress: Sequence[TaskProgress], now: float) -> None:
        """One more look. Tasks whose samples began or ended in between say nothing."""
        running = {one.task_id: one.running for one in progress if one.running}
        last, self._last = self._last, (now, running)
        if last is None or now <= last[0]:
            return
        grown = [
            (new - old) / (now - last[0])
            for task_id, tokens in running.items()
            if len(before := last[1].get(task_id, ())) == len(tokens)
            for old, new in zip(before, tokens, strict=True)
            if new > old
        ]
        if grown:
            self._take(sum(grown) / len(grown))

    def _take(self, pace: float) -> None:
        known = self.tokens_per_second
        self.tokens_per_second = pace if not known else known + NEWEST_SHARE * (pace - known)
