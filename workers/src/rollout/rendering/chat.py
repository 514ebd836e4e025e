"""The chat renderer: a model's own template, cut into segments of what others say and what it says.

Prompt and training ids come from the same segments, encoded one by one: the tokens a model is trained
on are those it will meet when it generates, whatever merges the tokenizer would make across the seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Template

from rollout.errors import SpecError
from rollout.rendering.template import render_template
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.types import Message

_PROBE = (Message(role="user", content="a"), Message(role="assistant", content="b"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of rendered text; ``said`` is True where the assistant speaks (its end included)."""

    text: str
    said: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRenderer:
    """Renders conversations with a chat template. ``stop_token_ids`` end an assistant turn."""

    tokenizer: ModelTokenizer
    template: Template
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    name: str = "chat"

    def render_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the conversation, ready for the assistant's turn."""
        segments = split_segments(self.template, self.tokenizer, messages, ask=True)
        if segments is None:  # a template that rewrites history: then there is nothing to keep
            segments = [Segment(text=self._text(messages), said=False)]
        return tuple(t for segment in segments for t in self.tokenizer.encode(segment.text))

    def render_training(
        self, messages: Sequence[Message]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids and mask; whatever the template writes after the last trained token is left out.

        Raises SpecError when the template rewrites earlier turns as the conversation grows: what was
        generated would not be what is trained on.
        """
        segments = split_segments(self.template, self.tokenizer, messages, ask=False)
        if segments is None:
            raise SpecError(
                f"chat template of {self.tokenizer.origin}: an assistant turn does not render to the "
                f"generation prompt followed by its content, or is rewritten by later turns; train on "
                f"single-turn data, or set model.chatTemplate to a template that only appends"
            )
        ids: list[int] = []
        mask: list[int] = []
        for segment in segments:
            encoded = self.tokenizer.encode(segment.text)
            ids += encoded
            mask += self._mask(encoded) if segment.said else [0] * len(encoded)
        end = len(mask) - mask[::-1].index(1) if 1 in mask else len(mask)
        return tuple(ids[:end]), tuple(mask[:end])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion without special tokens."""
        return self.tokenizer.decode(token_ids)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """Whether a completion's text, encoded again, is these tokens; special ones are not compared."""
        return self.tokenizer.survives_text(token_ids)

    def _mask(self, encoded: Sequence[int]) -> list[int]:
        """1 up to and including the end of the turn, 0 on what the template adds behind it."""
        end = next((i for i, t in enumerate(encoded) if t in self.stop_token_ids), None)
        trained = len(encoded) if end is None else end + 1
        return [1] * trained + [0] * (len(encoded) - trained)

    def _text(self, messages: Sequence[Message]) -> str:
        return _render(self.template, self.tokenizer, messages, ask=True)


def build_chat_renderer(tokenizer: ModelTokenizer, template: Template) -> ChatRenderer:
    """Find what ends a turn, then build. Raises SpecError when nothing does."""
    return ChatRenderer(
        tokenizer=tokenizer,
        template=template,
        stop_token_ids=find_stop_ids(tokenizer, template),
        pad_token_id=tokenizer.pad_id,
    )


def split_segments(
    template: Template, tokenizer: ModelTokenizer, messages: Sequence[Message], *, ask: bool
) -> list[Segment] | None:
    """The rendered conversation, cut before and after each assistant message.

    ``ask`` adds the generation prompt. None when the template does more than append, so that there is
    no such cut.
    """
    whole = _render(template, tokenizer, messages, ask=ask)
    segments: list[Segment] = []
    done = 0
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = _render(template, tokenizer, messages[:index], ask=True)
        after = _render(template, tokenizer, messages[: index + 1], ask=False)
        if not (whole.startswith(after) and after.startswith(before)):
            return None
        segments.append(Segment(text=whole[done : len(before)], said=False))
        segments.append(Segment(text=whole[len(before) : len(after)], said=True))
        done = len(after)
    segments.append(Segment(text=whole[done:], said=False))
    return [segment for segment in segments if segment.text]


def _render(
    template: Template, tokenizer: ModelTokenizer, messages: Sequence[Message], *, ask: bool
) -> str:
    return render_template(template, messages, tokenizer.specials, add_generation_prompt=ask)


def find_stop_ids(tokenizer: ModelTokenizer, template: Template) -> tuple[int, ...]:
    """The tokenizer's end token and the token with which the template ends an assistant turn."""
    found = {tokenizer.special_id("eos_token"), _turn_end(tokenizer, template)} - {None}
    if not found:
        raise SpecError(
            f"tokenizer of {tokenizer.origin} has no end token and its chat template ends a turn with "
            f"no special token, so generation could never stop; set eos_token in "
            f"tokenizer_config.json or model.chatTemplate"
        )
    return tuple(sorted(token_id for token_id in found if token_id is not None))


def _turn_end(tokenizer: ModelTokenizer, template: Template) -> int | None:
    segments = split_segments(template, tokenizer, _PROBE, ask=False) or []
    said = [segment.text for segment in segments if segment.said]
    special = {
        token_id
        for token_id, token in tokenizer.tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    behind = tokenizer.encode(said[0].split("b", 1)[1]) if said and "b" in said[0] else ()
    return behind[0] if behind and behind[0] in special else None
