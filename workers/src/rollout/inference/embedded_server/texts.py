"""The text of a completion as it grows: whole characters, and nothing that could be the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollout_vllm.stops import TextTail, first_stop


class GrowingText:
    """One completion's text. ``push`` tokens until ``ended``; ``rest`` is what was held back at the end."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._tail = TextTail(decode)
        self._stops = stops
        self._held_max = max(map(len, stops), default=1) - 1
        self._held = ""
        self.ended = False

    def push(self, token_id: int) -> str:
        """The text that is certain now; ends where a stop text stands, which is left out."""
        text = self._held + self._tail.push(token_id)
        found = first_stop(text, 0, self._stops) if self._stops else None
        if found is not None:
            self.ended, self._held = True, ""
            return text[: found[0]]
        cut = len(text) - self._held_max
        if cut <= 0:
            self._held = text
            return ""
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """What was held back, where nothing follows."""
        held, self._held = self._held, ""
        return held
