"""Questions over two documents in MuSiQue's form, and how a careless pupil searches for their answers.

A tiny world for each question: six people, each with a boss and a home. Whose home is asked for is known only once the
first person's document is read. The pupil mostly stops there and answers that person's own home; now and then it goes
on, and then it may type or read a letter wrong. ``python -m rollout.environments.sample_data.two_hops`` writes the
committed questions as JSON lines; those that a warm start is shown are others.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Generator, Iterator
from typing import Any, Literal

from rollout.environments.musique_search import FIELD
from rollout.rendering.tool_calls import call_id
from rollout.seeds import derive_seed
from rollout.tools.search import SearchIndex, SearchSource, read_documents
from rollout.turns import ToolSpec
from rollout.types import Message, ToolCall, ToolResult

QUESTIONS = 400
PEOPLE = 6
CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"

Manner = Literal["careful", "stops-early", "types-wrong", "reads-wrong"]
SHARES: tuple[tuple[int, Manner], ...] = (
    (25, "careful"),
    (80, "stops-early"),
    (90, "types-wrong"),
    (100, "reads-wrong"),
)
"""How a question is worked, by a draw below 100: the first whose number is above it."""


def questions(count: int, purpose: str = "questions") -> Iterator[dict[str, Any]]:
    """The first ``count`` rows of a purpose: ``id``, ``question``, ``answer``, ``answer_aliases``, ``paragraphs``."""
    for number in range(count):
        draw = random.Random(derive_seed(0, f"two-hops/{purpose}", number))
        yield _question(f"2hop__{number}", draw)


def searched(count: int) -> Iterator[tuple[tuple[Message, ...], tuple[ToolSpec, ...]]]:
    """The first ``count`` conversations of the pupil and its tools; equal on every machine."""
    tools = tuple(sorted(SearchSource(field=FIELD).specs, key=lambda spec: spec.name))
    for number, row in enumerate(questions(count, "pupil")):
        draw = random.Random(derive_seed(0, "two-hops/manner", number))
        yield tuple(_worked(row, draw)), tools


def _question(name: str, draw: random.Random) -> dict[str, Any]:
    words = draw.sample(range(len(CONSONANTS) ** 2 * len(VOWELS)), 2 * PEOPLE)
    people, homes = [_word(n) for n in words[:PEOPLE]], [_word(n) for n in words[PEOPLE:]]
    first, second = draw.sample(range(PEOPLE), 2)
    bosses = [draw.choice([p for p in people if p != one]) for one in people]
    bosses[first] = people[second]
    paragraphs = [
        {
            "idx": i,
            "title": people[i],
            "paragraph_text": f"{people[i]} has boss {bosses[i]} home {homes[i]}",
            "is_supporting": i in {first, second},
        }
        for i in range(PEOPLE)
    ]
    return {
        "id": name,
        "question": f"home of boss of {people[first]}",
        "answer": homes[second],
        "answer_aliases": [],
        "paragraphs": paragraphs,
    }


def _word(number: int) -> str:
    """A word of three letters."""
    rest, last = divmod(number, len(CONSONANTS))
    first, middle = divmod(rest, len(VOWELS))
    return CONSONANTS[first] + VOWELS[middle] + CONSONANTS[last]


def _worked(row: dict[str, Any], draw: random.Random) -> Iterator[Message]:
    chance = draw.randrange(100)
    manner = next(name for below, name in SHARES if chance < below)
    index = SearchIndex(read_documents(row["paragraphs"], FIELD))
    yield Message(role="user", content=row["question"])
    found = yield from _search(index, row["question"].rpartition(" ")[2], 0)
    if manner == "stops-early":
        yield _said(found.rpartition(" ")[2])
        return
    boss = found.split(" ")[-3]
    found = yield from _search(index, _slip(boss, draw) if manner == "types-wrong" else boss, 1)
    home = found.rpartition(" ")[2]
    yield _said(_slip(home, draw) if manner == "reads-wrong" else home)


def _search(index: SearchIndex, query: str, turn: int) -> Generator[Message, None, str]:
    call = ToolCall(
        call_id=call_id(turn, 0),
        name="search",
        arguments_text="",
        arguments={"query": query, "k": 1},
    )
    told = index.search(query, 1).text
    yield Message(role="assistant", content=(call,))
    yield Message(
        role="tool", content=(ToolResult(call_id=call.call_id, name="search", text=told),)
    )
    return told


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)


def _slip(word: str, draw: random.Random) -> str:
    """The word with one letter replaced by any of its kind."""
    place = draw.randrange(len(word))
    letter = draw.choice(VOWELS if word[place] in VOWELS else CONSONANTS)
    return f"{word[:place]}{letter}{word[place + 1 :]}"


def main() -> None:
    """Write the committed questions."""
    for row in questions(QUESTIONS):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
