"""Where a completion has said a stop text: token by token, the same in every engine.

The text of a completion so far is what its tokens decode to, without a character at the end that is not whole yet.
A stop text ends the completion at the first token with which it stands in that text, wherever tokens or characters
divide it. What stands in the prompt, or was said whole among the first ``least`` tokens, ends nothing.
Pure; it knows a tokenizer only as a function from ids to text, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

STOP_TEXTS = "rollout_stop"
"""Name of what a request to vLLM says of stop texts, among its ``extra_args``."""
Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
"""What a tokenizer writes for bytes that are no whole character."""
KEPT_TOKENS = 8
"""Tokens that are decoded again with the next ones: what a token says can depend on those before it."""
WINDOW_TOKENS = 2 * KEPT_TOKENS
WINDOW_TOKENS_MAX = 64
CHARACTER_TOKENS_MAX = 4
"""A character of UTF-8 has at most so many bytes, and a token at least one."""


class StopScanner:
    """One completion: ``push`` its tokens in order until it answers True.

    ``begun`` are tokens that the completion already had, none of which ended it. ``least``: the first so many
    of the tokens that are pushed end nothing.
    """

    def __init__(
        self, decode: Decode, stops: Sequence[str], *, least: int = 0, begun: Iterable[int] = ()
    ) -> None:
        self._text = TextTail(decode)
        self._stops = stops
        self._kept_max = max(map(len, stops)) - 1
        self._tail = ""
        self._least = least
        for token_id in begun:
            self._said_stop(token_id)

    def push(self, token_id: int) -> bool:
        """Whether this token ends the completion."""
        said = self._said_stop(token_id)
        self._least -= 1
        return said and self._least < 0

    def _said_stop(self, token_id: int) -> bool:
        new = self._text.push(token_id)
        if not new:
            return False
        text = self._tail + new
        found = first_stop(text, len(self._tail), self._stops) is not None
        self._tail = text[max(0, len(text) - self._kept_max) :]
        return found


class TextTail:
    """What each token adds to the text of those before it, from a window of bounded length."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._said = 0

    def push(self, token_id: int) -> str:
        """The whole characters that this token adds."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        whole = text.rstrip(REPLACEMENT)
        new = whole[self._said :]
        self._said = max(self._said, len(whole))
        if len(self._ids) >= WINDOW_TOKENS and (
            text == whole or len(self._ids) >= WINDOW_TOKENS_MAX
        ):
            self._forget()
        return new

    def _forget(self) -> None:
        """Keep the last tokens, from where a character begins."""
        for size in range(KEPT_TOKENS, KEPT_TOKENS + CHARACTER_TOKENS_MAX):
            text = self._decode(self._ids[-size:])
            if REPLACEMENT not in text or len(self._ids) >= WINDOW_TOKENS_MAX:
                self._ids, self._said = self._ids[-size:], len(text.rstrip(REPLACEMENT))
                return


def first_stop(text: str, known: int, stops: Sequence[str]) -> tuple[int, int] | None:
    """Start and end of the stop text that begins first (of several there, the longest) and ends behind ``known``."""
    found = [
        (start, start + len(stop))
        for stop in stops
        if (start := text.find(stop, max(0, known - len(stop) + 1))) >= 0
    ]
    return min(found, key=lambda place: (place[0], -place[1]), default=None)
