"""The answers of a measuring that goes over a network: one line each, appended whole, read back after a crash.

The first line says what was asked of whom: another measuring is refused in the same folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout.errors import DataError, SpecError

ITEMS = "items.jsonl"
LINE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """One reply with what it was given; ``tokens`` None where the server did not count."""

    text: str
    finish: str
    reward: float
    rewards: Mapping[str, float]
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt of a suite: its answers, or why the server would not answer it."""

    suite: str
    split: str
    place: int
    prompt: str
    wanted: str = ""
    answers: tuple[ServedAnswer, ...] = ()
    refused: str = ""


@dataclass(slots=True)
class ItemFile:
    """The file of one measuring; ``done`` by (suite, split, place)."""

    path: Path
    header: Mapping[str, Any]
    done: dict[tuple[str, str, int], AskedPrompt] = field(default_factory=dict)

    def append(self, items: Sequence[AskedPrompt]) -> None:
        """Write lines, durably."""
        lines = "".join(json.dumps(_plain(one), ensure_ascii=False) + "\n" for one in items)
        with self.path.open("a", encoding="utf-8") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
        self.done |= {(one.suite, one.split, one.place): one for one in items}


def open_items(folder: Path, header: Mapping[str, Any]) -> ItemFile:
    """The folder's file, begun or gone on with. Raises SpecError where it holds another measuring."""
    path = folder / ITEMS
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(header, sort_keys=True) + "\n", encoding="utf-8")
        return ItemFile(path, header)
    known, items = read_items(folder)
    if differs := [name for name in header if known.get(name) != header[name]]:
        raise SpecError(
            f"{path} was begun with another {differs[0]}: {known.get(differs[0])!r}, now {header[differs[0]]!r};"
            " measure in another folder"
        )
    _drop_torn(path)
    return ItemFile(path, header, {(one.suite, one.split, one.place): one for one in items})


def read_items(folder: Path) -> tuple[dict[str, Any], list[AskedPrompt]]:
    """What was asked of whom, and the prompts that are done. Raises DataError for a damaged file."""
    path = folder / ITEMS
    lines = _lines(path)
    try:
        header = json.loads(next(lines, "{}"))
        return header, [_item(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    """Whole lines: one that a crash tore off is not there."""
    with path.open(encoding="utf-8") as source:
        while line := source.readline(LINE_BYTES_MAX):
            if line.endswith("\n"):
                yield line


def _drop_torn(path: Path) -> None:
    with path.open("rb+") as source:
        source.truncate(source.read().rfind(b"\n") + 1)


def _plain(item: AskedPrompt) -> dict[str, Any]:
    answers = [
        {name: getattr(one, name) for name in ("text", "finish", "reward", "rewards", "tokens")}
        for one in item.answers
    ]
    kept = ("suite", "split", "place", "prompt", "wanted", "refused")
    return {**{name: getattr(item, name) for name in kept}, "answers": answers}


def _item(found: Mapping[str, Any]) -> AskedPrompt:
    answers = tuple(ServedAnswer(**one) for one in found["answers"])
    return AskedPrompt(
        suite=found["suite"],
        split=found["split"],
        place=found["place"],
        prompt=found["prompt"],
        wanted=found["wanted"],
        refused=found["refused"],
        answers=answers,
    )
