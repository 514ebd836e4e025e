"""From rows to tokens: pairs of answers to one prompt, and single answers with a label.

An answer's tokens are the ones the policy would generate: what the renderer puts after the prompt, its
end of turn included. What is too long is kept here and left out by the work, counted and recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from blake3 import blake3

from rollout.data.rows.mapping import BadRecord, pair_messages, row_messages
from rollout.errors import DataError, SpecError
from rollout.learner.forward.packed_rows import GroupTokens
from rollout.protocol.messages import DataRow
from rollout.seams import Renderer
from rollout.types import Message

Ids = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTokens:
    """One pair; ``margin`` is the wanted difference of scores (reward models), 0 without one."""

    prompt_ids: Ids
    chosen_ids: Ids
    rejected_ids: Ids
    margin: float = 0.0

    @property
    def tokens(self) -> GroupTokens:
        """The prompt and both answers."""
        return GroupTokens(
            prompt_ids=self.prompt_ids, completion_ids=(self.chosen_ids, self.rejected_ids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTokens:
    """One answer, ``desirable`` or not."""

    prompt_ids: Ids
    answer_ids: Ids
    desirable: bool

    @property
    def tokens(self) -> GroupTokens:
        """The prompt and the answer."""
        return GroupTokens(prompt_ids=self.prompt_ids, completion_ids=(self.answer_ids,))


def render_pairs(rows: Sequence[DataRow], renderer: Renderer) -> list[PairTokens]:
    """Tokens of each row. Raises DataError for a row that is no pair, or whose answers are equal tokens."""
    return [_named(row, renderer, _pair) for row in rows]


def render_labelled(rows: Sequence[DataRow], renderer: Renderer) -> list[LabelledTokens]:
    """Tokens of each row. Raises DataError for a row without an answer or a label."""
    return [_named(row, renderer, _labelled) for row in rows]


def _named(row: DataRow, renderer: Renderer, read: Callable[[DataRow, Renderer], T]) -> T:
    try:
        return read(row, renderer)
    except BadRecord as error:
        raise DataError(f"row {row.ordinal} of the training data {error}") from error


def _pair(row: DataRow, renderer: Renderer) -> PairTokens:
    messages, chosen, rejected = pair_messages(row.row)
    prompt_ids = renderer.render_prompt(messages)
    answers = [answer_ids(messages, prompt_ids, text, renderer) for text in (chosen, rejected)]
    if answers[0] == answers[1]:
        raise BadRecord("has answers that are equal as tokens: there is no preference between them")
    return PairTokens(
        prompt_ids=prompt_ids,
        chosen_ids=answers[0],
        rejected_ids=answers[1],
        margin=float(row.row.get("margin") or 0.0),
    )


def _labelled(row: DataRow, renderer: Renderer) -> LabelledTokens:
    if "answer" not in row.row or not isinstance(row.row.get("label"), bool):
        raise BadRecord("has no answer with a label; name them with answerField and labelField")
    messages = row_messages(row.row)
    prompt_ids = renderer.render_prompt(messages)
    return LabelledTokens(
        prompt_ids=prompt_ids,
        answer_ids=answer_ids(messages, prompt_ids, row.row["answer"], renderer),
        desirable=row.row["label"],
    )


def answer_ids(
    messages: tuple[Message, ...], prompt_ids: Ids, text: str, renderer: Renderer
) -> Ids:
    """The tokens that the renderer puts after the prompt. Raises SpecError where there is no such cut."""
    ids, mask = renderer.render_training((*messages, Message(role="assistant", content=text)))
    start = len(prompt_ids)
    if ids[:start] != prompt_ids or not all(mask[start:]) or start == len(ids):
        raise SpecError(
            "model.chatTemplate: an answer does not render to the prompt followed by the answer, so"
            " that two answers would not share their prompt; use a template that only appends"
        )
    return ids[start:]


def digest_pairs(pairs: Iterable[PairTokens]) -> str:
    """Over tokens and margins, in order."""
    integers, reals = array("q"), array("d")
    for pair in pairs:
        for ids in (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids):
            integers.append(len(ids))
            integers.extend(ids)
        reals.append(pair.margin)
    return blake3(integers.tobytes()).update(reals.tobytes()).hexdigest()


def digest_labelled(rows: Iterable[LabelledTokens]) -> str:
    """Over tokens and labels, in order."""
    integers = array("q")
    for row in rows:
        for ids in (row.prompt_ids, row.answer_ids):
            integers.append(len(ids))
            integers.extend(ids)
        integers.append(row.desirable)
    return blake3(integers.tobytes()).hexdigest()
