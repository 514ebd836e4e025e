"""Replies that are given, as tokens behind a text that they go on with: no chat template.

The rule of lm-evaluation-harness 0.4.13 (``_encode_pair`` of ``lm_eval/api/model.py``): white space at the end of the
text belongs to the replies; the tokens of a reply are those that text and reply have together behind those that the
text has alone. Where the tokenizer joins the two across that boundary there are no such tokens: refused, where the
harness scores tokens that spell something else.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout.errors import DataError
from rollout.seams import Renderer
from rollout.types import Message


def choice_text(messages: Sequence[Message]) -> str:
    """The text that the choices go on with: the only message's. Raises DataError where there are more."""
    if len(messages) != 1:
        raise DataError(
            f"choices are scored behind one text, and there are {len(messages)} messages; say it all in one"
        )
    return messages[0].text


def render_before(renderer: Renderer, text: str) -> tuple[int, ...]:
    """Ids of the text that the choices go on with, without white space at its end. Raises DataError."""
    if not text.strip():
        raise DataError("choices are scored behind a text, and there is none")
    return renderer.render_text(text.rstrip())


def render_choices(
    renderer: Renderer, text: str, choices: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Ids of each choice behind ``text``. Raises DataError naming the choice that has no tokens of its own."""
    before = render_before(renderer, text)
    said = text.rstrip()
    return tuple(
        _split(renderer.render_text(text + choice), before, said, choice) for choice in choices
    )


def _split(
    whole: tuple[int, ...], before: tuple[int, ...], said: str, choice: str
) -> tuple[int, ...]:
    if whole[: len(before)] != before:
        raise DataError(
            f"the tokenizer joins the choice {choice!r:.60} with the end of its prompt {said[-20:]!r}, so it has"
            " no log-probability of its own; leave such rows out, or part them by another character"
        )
    if len(whole) == len(before):
        raise DataError(
            f"the choice {choice!r:.60} has no token behind the prompt {said[-20:]!r}, so there is nothing to"
            " score; write its text, or leave such rows out"
        )
    return whole[len(before) :]
