"""A reply to a prompt with instructions: how many it follows, strictly and loosely.

Loose: any of eight variants follows, without the first line, the last, or both, and each without asterisks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.evaluations.scoring.ifeval.checks import CHECKS
from rollout.types import Completion, Message, Row


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of a prompt's instructions with what it was given; nothing that is empty."""

    id: str
    given: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether every argument that its check needs is there."""
        return all(name in self.given for name in CHECKS[self.id].needs)


def read_instructions(row: Row) -> list[Instruction]:
    """The instructions of a row. Raises ValueError naming what is wrong with it."""
    ids, given = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(ids, list) or not isinstance(given, list) or not len(ids) == len(given) > 0:
        raise ValueError("expected instruction_id_list and kwargs, lists of one length above 0")
    if unknown := [one for one in ids if one not in CHECKS]:
        raise ValueError(f"instruction {unknown[0]!r} is not known")
    return [
        Instruction(one, {name: value for name, value in (kwargs or {}).items() if value})
        for one, kwargs in zip(ids, given, strict=True)
    ]


def loose_variants(reply: str) -> list[str]:
    """What is tried in turn."""
    lines = reply.split("\n")
    cut = [reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(one.replace("*", "") for one in cut)]


def is_followed(instruction: Instruction, variants: Sequence[str]) -> bool:
    """Whether any variant that is not blank follows it."""
    check = CHECKS[instruction.id].follows
    return any(check(one, instruction.given) for one in variants if one.strip())


def score_reply(reply: str, instructions: Sequence[Instruction]) -> dict[str, float]:
    """Of one reply: whether all are followed, and how many of how many; those without arguments are not counted."""
    whole = [one for one in instructions if one.is_whole]
    strict = [is_followed(one, [reply]) for one in whole]
    loose = [is_followed(one, loose_variants(reply)) for one in whole]
    return {
        "prompt_strict": float(all(strict)),
        "prompt_loose": float(all(loose)),
        "inst_strict": float(sum(strict)),
        "inst_loose": float(sum(loose)),
        "instructions": float(len(whole)),
        "unscored": float(len(instructions) - len(whole)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class IfevalScore:
    """Scores completions by the instructions of their rows."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """Shares and counts by name."""
        del prompts
        return [
            {**score_reply(one.text, read_instructions(row)), "cut": float(one.finish == "length")}
            for one, row in zip(completions, rows, strict=True)
        ]
