"""A person as the policy: what is written is the reply, and its tokens are its characters.

So the actor's loop plays a person as it plays a model. Knows no model and no chat template: a person reads messages.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rollout.debug.playing.episode import LeftTheEpisode, Player
from rollout.rendering.tool_calls import parse_reply
from rollout.seams import SampleProgress
from rollout.turns import ToolSpec
from rollout.types import Completion, GenerateRequest, Message, Part, SamplingParams, WeightVersion

END = 0x110000
"""The token that ends a reply: the number behind the last character's."""
CHARACTERS_MAX = 1 << 20
"""Of one reply."""
NOBODY = WeightVersion(lineage=0, step=0, digest="", object="")
Read = Callable[[], str | None]
"""The next reply; None: nobody answers any more."""


def person(read: Read) -> Player:
    """Who writes what ``read`` returns."""
    return Player(
        engine=PersonEngine(read),
        renderer=CharacterRenderer(),
        version=NOBODY,
        sampling=SamplingParams(max_new_tokens=CHARACTERS_MAX, stop_token_ids=(END,)),
        continuous=True,
    )


class PersonEngine:
    """``rollout.seams.Engine`` over one who types. Waiting blocks the loop: nobody else plays in it."""

    version = NOBODY

    def __init__(self, read: Read) -> None:
        self._read = read

    async def start(self) -> None:
        """Nothing is brought up."""

    async def load(
        self, version: WeightVersion, weights: Path, changed: frozenset[str] | None = None
    ) -> str:
        """Nothing is loaded."""
        del weights, changed
        return version.digest

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """One reply for each seed. Raises LeftTheEpisode at the end of what is written."""
        return [[self._completion() for _ in request.seeds] for request in requests]

    def _completion(self) -> Completion:
        with _interruptible():
            written = self._read()
        if written is None:
            raise LeftTheEpisode("the episode was left before its end")
        token_ids = (*map(ord, written), END)
        return Completion(
            token_ids=token_ids, logprobs=(0.0,) * len(token_ids), finish="stop", text=written
        )

    def interrupt(self) -> None:
        """Nobody is hurried."""

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """Nothing is known of it."""
        return ()

    async def stop(self) -> None:
        """Nothing is held."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the waiting at once; an event loop would only take note of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class CharacterRenderer:
    """``rollout.seams.Renderer`` of text as it is; calls are written as Qwen writes them."""

    stop_token_ids = (END,)

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """The characters of what was said."""
        del tools
        return _characters(messages)

    def render_text(self, text: str) -> tuple[int, ...]:
        """Its characters."""
        return tuple(map(ord, text))

    def render_next(self, reply: Message, added: Sequence[Message]) -> tuple[int, ...]:
        """The end of the reply, and the characters of what is added."""
        del reply
        return (END, *_characters(added))

    def parse_reply(
        self, text: str, said: Sequence[int], tools: Sequence[ToolSpec], turn: int
    ) -> tuple[Part, ...]:
        """Text and calls."""
        del said
        return parse_reply(text, "hermes", tools, turn)

    def render_training(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Nobody is trained: no token counts."""
        token_ids = self.render_prompt(messages, tools)
        return token_ids, (0,) * len(token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The characters without the end."""
        return "".join(chr(one) for one in token_ids if one != END)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """Characters are what text is made of."""
        del token_ids
        return True


def _characters(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(ord(character) for message in messages for character in message.text)
