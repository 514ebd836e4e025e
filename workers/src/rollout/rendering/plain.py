"""The plain renderer: prompt text, completion, end token. No chat markup.

For models that were never taught any (``rollout://tiny-adder``, base models). A system message and
the text after it are parted by an empty line; an assistant turn ends with the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout.errors import SpecError
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.rendering.tool_calls import parse_reply, write_call
from rollout.turns import ToolSpec
from rollout.types import Message, Part

SYSTEM_END = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRenderer:
    """Renders conversations as bare text. ``prefix`` is the tokenizer's own first token, if any."""

    tokenizer: ModelTokenizer
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    prefix: tuple[int, ...] = ()
    name: str = "plain"

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Ids of the conversation so far. Tools are not told of: a plain model knows them, or learns them."""
        del tools
        return self._render(messages)[0]

    def render_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text that the model goes on with. Raises DataError."""
        return self.tokenizer.encode_whole(text)

    def render_next(self, reply: Message, added: Sequence[Message]) -> tuple[int, ...]:
        """The end token of a reply, and the ids of what is added."""
        del reply
        return (*self.stop_token_ids[:1], *self._render(added)[0][len(self.prefix) :])

    def parse_reply(
        self, text: str, said: Sequence[int], tools: Sequence[ToolSpec], turn: int
    ) -> tuple[Part, ...]:
        """The parts of a reply; calls as Qwen writes them."""
        del said
        return parse_reply(text, "hermes", tools, turn)

    def render_training(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids and mask: 1 on assistant text, its calls and the end token behind them."""
        del tools
        ids, mask = self._render(messages)
        end = len(mask) - mask[::-1].index(1) if 1 in mask else len(mask)
        return ids[:end], mask[:end]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion without special tokens."""
        return self.tokenizer.decode(token_ids)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """Whether a completion's text, encoded again, is these tokens; special ones are not compared."""
        return self.tokenizer.survives_text(token_ids)

    def _render(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ids = list(self.prefix)
        mask = [0] * len(ids)
        for message in messages:
            said = message.role == "assistant"
            tail = SYSTEM_END if message.role == "system" else ""
            calls = "".join(write_call(call) for call in message.calls)
            encoded = list(self.tokenizer.encode(message.text + calls + tail))
            encoded += self.stop_token_ids[:1] if said else ()
            ids += encoded
            mask += [int(said)] * len(encoded)
        return tuple(ids), tuple(mask)


def build_plain_renderer(tokenizer: ModelTokenizer) -> PlainRenderer:
    """Raises SpecError when the tokenizer has no end token."""
    end = tokenizer.special_id("eos_token")
    if end is None:
        raise SpecError(
            f"tokenizer of {tokenizer.origin} has no end token, so a plain completion could never "
            f"stop; set eos_token in tokenizer_config.json"
        )
    return PlainRenderer(
        tokenizer=tokenizer,
        stop_token_ids=(end,),
        pad_token_id=tokenizer.pad_id,
        prefix=_prefix(tokenizer),
    )


def _prefix(tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """The begin token, when the tokenizer itself puts one before every text."""
    begin = tokenizer.special_id("bos_token")
    added = tokenizer.tokenizer.encode("").ids
    return (begin,) if begin is not None and added[:1] == [begin] else ()
