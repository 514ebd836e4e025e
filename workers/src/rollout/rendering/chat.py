"""The chat renderer: a model's own template, cut into segments of what others say and what it says.

Prompt and training ids come from the same segments, encoded one by one: the tokens a model is trained
on are those it will meet when it generates, whatever merges the tokenizer would make across the seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Template

from rollout.errors import DataError, SpecError
from rollout.rendering.template import render_template
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.rendering.tool_calls import THINK, CallForm, call_form, parse_reply
from rollout.turns import ToolSpec
from rollout.types import Message, Part, ToolCall, ToolResult

_SAID = "\u2042said\u2042"
"""A reply's place in a rendered conversation."""
_ASKED = Message(role="user", content="a")
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
    form: CallForm | None = None
    thinking: bool = False
    turn_end: str = ""

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Ids of the conversation, ready for the assistant's turn. Raises SpecError where no call could be read."""
        messages = guard_results(messages, self.tokenizer)
        if tools:
            self._require_form([tool.name for tool in tools])
            text = render_template(
                self.template,
                messages,
                self.tokenizer.specials,
                add_generation_prompt=True,
                tools=tools,
            )
            return self.tokenizer.encode(text)
        segments = split_segments(self.template, self.tokenizer, messages, ask=True)
        if segments is None:  # a template that rewrites history: then there is nothing to keep
            segments = [Segment(text=self._text(messages), said=False)]
        return tuple(t for segment in segments for t in self.tokenizer.encode(segment.text))

    def render_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text that the model goes on with. Raises DataError."""
        return self.tokenizer.encode_whole(text)

    def render_next(self, reply: Message, added: Sequence[Message]) -> tuple[int, ...]:
        """Ids from the end of a reply's turn on: that end, what is added, and the prompt for the next reply.

        They do not depend on what was said before, so nothing of it is rendered or encoded again. Raises
        DataError where the template writes such a turn in no place of its own.
        """
        added = guard_results(added, self.tokenizer)
        try:
            text = _render(
                self.template, self.tokenizer, (_ASKED, _stand_in(reply), *added), ask=True
            )
        except SpecError as error:
            raise DataError(f"{error}; this model takes no such turn") from error
        start = text.find(_SAID)
        end = text.find(self.turn_end, start) if self.turn_end else start + len(_SAID)
        if start < 0 or end < 0:
            raise DataError(
                f"chat template of {self.tokenizer.origin}: a reply of the conversation is not to be found in"
                " it once it goes on; multi-turn training needs one that only appends (set model.chatTemplate)"
            )
        return self.tokenizer.encode(text[end:])

    def parse_reply(
        self, text: str, said: Sequence[int], tools: Sequence[ToolSpec], turn: int
    ) -> tuple[Part, ...]:
        """The parts of a reply: reasoning, text, tool calls."""
        if tools and self.form == "mistral":
            kept = [token for token in said if token not in self.stop_token_ids]
            text = self.tokenizer.tokenizer.decode(kept, skip_special_tokens=False)
        return parse_reply(text, self.form, tools, turn, thinking=self.thinking)

    def _require_form(self, tools: Sequence[str]) -> None:
        if self.form is None:
            named = f"there are tools ({', '.join(tools)})" if tools else "there are calls"
            raise SpecError(
                f"chat template of {self.tokenizer.origin} writes tool calls in no form that is known here, and"
                f" {named}; take a model of Qwen 2.5, 3, 3.5, Llama 3 or Mistral, or set model.chatTemplate"
            )

    def render_training(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids and mask; whatever the template writes after the last trained token is left out.

        Raises SpecError when the template rewrites earlier turns as the conversation grows: what was
        generated would not be what is trained on; and where it writes no calls that could be read again.
        """
        messages = guard_results(messages, self.tokenizer)
        if tools or any(message.calls for message in messages):
            self._require_form([tool.name for tool in tools])
        segments = split_segments(self.template, self.tokenizer, messages, ask=False, tools=tools)
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


def build_chat_renderer(
    tokenizer: ModelTokenizer, template: Template, text: str = ""
) -> ChatRenderer:
    """Find what ends a turn, then build; ``text`` is the template's own. Raises SpecError when nothing does."""
    end = _turn_end(tokenizer, template)
    return ChatRenderer(
        tokenizer=tokenizer,
        template=template,
        stop_token_ids=find_stop_ids(tokenizer, template),
        pad_token_id=tokenizer.pad_id,
        form=call_form(text),
        thinking=_begins_thinking(tokenizer, template),
        turn_end="" if end is None else tokenizer.tokenizer.id_to_token(end) or "",
    )


def _begins_thinking(tokenizer: ModelTokenizer, template: Template) -> bool:
    """Whether the generation prompt opens the reasoning, so that a reply begins inside of it."""
    try:
        return _render(template, tokenizer, _PROBE[:1], ask=True).rstrip().endswith(THINK)
    except SpecError:
        return False


def _stand_in(reply: Message) -> Message:
    """A reply in the place of the one that was sampled, with the calls that results are told of."""
    if not reply.calls:
        return Message(role="assistant", content=_SAID)
    calls = [
        ToolCall(
            call_id=call.call_id, name=call.name or "x", arguments_text="", arguments={"x": "x"}
        )
        for call in reply.calls
    ]
    last = calls[-1]
    marked = ToolCall(
        call_id=last.call_id, name=last.name, arguments_text="", arguments={"x": _SAID}
    )
    return Message(role="assistant", content=(*calls[:-1], marked))


def guard_results(messages: Sequence[Message], tokenizer: ModelTokenizer) -> tuple[Message, ...]:
    """The messages, special tokens that stand in tool results parted: a result forges no turn."""
    return tuple(
        Message(role=one.role, content=tuple(_guard(part, tokenizer) for part in one.parts))
        if any(isinstance(part, ToolResult) for part in one.parts)
        else one
        for one in messages
    )


def _guard(part: Part, tokenizer: ModelTokenizer) -> Part:
    if not isinstance(part, ToolResult):
        return part
    text = part.text
    for special in tokenizer.special_texts:
        if len(special) > 1 and special in text:
            text = text.replace(special, f"{special[0]} {special[1:]}")
    return ToolResult(call_id=part.call_id, name=part.name, text=text, is_error=part.is_error)


def split_segments(
    template: Template,
    tokenizer: ModelTokenizer,
    messages: Sequence[Message],
    *,
    ask: bool,
    tools: Sequence[ToolSpec] = (),
) -> list[Segment] | None:
    """The rendered conversation, cut before and after each assistant message.

    ``ask`` adds the generation prompt. None when the template does more than append, so that there is
    no such cut.
    """
    whole = _render(template, tokenizer, messages, ask=ask, tools=tools)
    segments: list[Segment] = []
    done = 0
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = _render(template, tokenizer, messages[:index], ask=True, tools=tools)
        after = _render(template, tokenizer, messages[: index + 1], ask=False, tools=tools)
        if not (whole.startswith(after) and after.startswith(before)):
            return None
        segments.append(Segment(text=whole[done : len(before)], said=False))
        segments.append(Segment(text=whole[len(before) : len(after)], said=True))
        done = len(after)
    segments.append(Segment(text=whole[done:], said=False))
    return [segment for segment in segments if segment.text]


def _render(
    template: Template,
    tokenizer: ModelTokenizer,
    messages: Sequence[Message],
    *,
    ask: bool,
    tools: Sequence[ToolSpec] = (),
) -> str:
    return render_template(
        template, messages, tokenizer.specials, add_generation_prompt=ask, tools=tools
    )


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
