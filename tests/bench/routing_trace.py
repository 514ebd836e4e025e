"""Traces of requests: conversations of several keys, drawn by a seed.

A conversation begins with parts that others have too (instructions of its key, a document, examples), goes on for some turns, and each turn's
prompt is everything before it. Some turns ask for several samples. ``users`` conversations are open at a time, each a client that thinks
before it asks again: who is answered sooner asks more. Without shared beginnings each request is a text of its own, of the same length.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b, shake_128

from routing_engine import TOKEN_BYTES, Request

CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that a client adds, tokens of each answer, seconds until it asks again, and how many answers it wants."""

    asked: int
    answered: int
    think_seconds: float
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """``beginnings``: names of its key's texts that others share, with their tokens. ``number`` makes its own texts."""

    key: str
    number: int
    beginnings: tuple[tuple[str, int], ...]
    turns: tuple[Turn, ...]
    shared: bool = True

    def requests(self, turn: int) -> list[Request]:
        """The requests of one turn."""
        parts = [_text(f"{self.key}/{name}", num) for name, num in self.beginnings]
        for place, one in enumerate(self.turns[: turn + 1]):
            if place:
                before = self.turns[place - 1]
                parts.append(_text(f"{self.number}/a{place - 1}/0", before.answered))
            parts.append(_text(f"{self.number}/q{place}", one.asked))
        prompt, asked = b"".join(parts), self.turns[turn]
        if not self.shared:
            prompt = _text(f"{self.number}/{turn}/alone", len(prompt) // TOKEN_BYTES)
        return [
            Request(
                key=self.key,
                session=str(self.number).encode(),
                text=prompt + _text(f"{self.number}/a{turn}/{sample}", asked.answered),
                prompt_tokens=len(prompt) // TOKEN_BYTES,
                new_tokens=asked.answered,
            )
            for sample in range(asked.samples)
        ]


@dataclass(frozen=True, slots=True)
class Trace:
    """``begin_seconds``: between the first requests of two users."""

    name: str
    users: int
    begin_seconds: float
    conversations: tuple[Conversation, ...]

    def alone(self) -> Trace:
        """The same lengths, nothing shared."""
        own = tuple(replace(one, shared=False) for one in self.conversations)
        return replace(self, name=f"{self.name}, nothing shared", conversations=own)

    @property
    def digest(self) -> str:
        """Of all that was drawn."""
        return blake2b(repr(self.conversations).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Kind:
    """How conversations of one kind are drawn: ranges, ends included. ``texts``: beginnings of a key that there are to choose from."""

    texts: int
    beginning: tuple[int, int]
    turns: tuple[int, int]
    asked: tuple[int, int]
    answered: tuple[int, int]
    think_seconds: tuple[float, float]
    samples: tuple[int, int] = (1, 1)


CHATS: Mapping[Kind, float] = {
    Kind(1, (200, 800), (2, 8), (20, 200), (40, 160), (1, 8)): 0.5,
    Kind(12, (800, 2200), (1, 3), (20, 80), (20, 120), (1, 6)): 0.3,
    Kind(3, (200, 900), (1, 1), (50, 250), (30, 120), (0.5, 2), (4, 8)): 0.2,
}
"""What the rule was tuned on: chats, questions about documents, groups of samples."""
AGENTS: Mapping[Kind, float] = {
    Kind(2, (500, 1300), (3, 10), (40, 260), (15, 90), (0.2, 1.5)): 0.5,
    Kind(40, (500, 2800), (1, 4), (15, 60), (60, 200), (2, 12)): 0.2,
    Kind(1, (100, 400), (4, 12), (10, 120), (60, 200), (3, 15)): 0.15,
    Kind(6, (500, 1500), (1, 1), (30, 120), (60, 160), (0.2, 1), (2, 16)): 0.15,
}
"""What is reported: agents that come back at once, many documents, long chats, larger groups."""


def draw_trace(
    name: str, seed: int, kinds: Mapping[Kind, float], *, users: int, num: int, keys: int
) -> Trace:
    """A trace of ``num`` conversations, as many of each key."""
    draw = random.Random(seed)
    sizes: dict[str, int] = {}
    found = []
    for number in range(num):
        key = f"key-{number % keys}"
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        found.append(_draw_conversation(draw, key, number, list(kinds).index(kind), kind, sizes))
    return Trace(name, users, 1.0, tuple(found))


def _draw_conversation(
    draw: random.Random, key: str, number: int, place: int, kind: Kind, sizes: dict[str, int]
) -> Conversation:
    which = min(draw.randrange(kind.texts), draw.randrange(kind.texts))
    text = f"{place}/{which}"
    size = sizes.setdefault(f"{key}/{text}", draw.randint(*kind.beginning))
    turns: list[Turn] = []
    for _ in range(draw.randint(*kind.turns)):
        asked, answered = draw.randint(*kind.asked), draw.randint(*kind.answered)
        size += asked + answered
        if size > CONTEXT:
            break
        think = round(draw.uniform(*kind.think_seconds), 2)
        turns.append(Turn(asked, answered, think, draw.randint(*kind.samples)))
    return Conversation(key, number, ((text, sizes[f"{key}/{text}"]),), tuple(turns))


def _text(name: str, tokens: int) -> bytes:
    return shake_128(name.encode()).digest(tokens * TOKEN_BYTES)
