"""What the embedded engine is asked for: OpenAI's bodies in, orders to decode out. What it cannot do is refused by name.

Speaks as vLLM's server does, which stands in its place for large models: the same paths, shapes and error objects.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout.errors import DataError, SpecError
from rollout.rendering.chat import ChatRenderer
from rollout.rendering.plain import PlainRenderer
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.types import Message

TOKENS_DEFAULT = 1024
"""New tokens where a body names no limit and the context leaves more."""
SAMPLES_MAX = 16
STOPS_MAX = 4
STOP_CHARACTERS_MAX = 256
TOP_LOGPROBS_MAX = 20
ROLES = frozenset({"system", "user", "assistant", "tool"})
DONE_BY_CHAT = frozenset(
    {
        *(
            "model",
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "top_k",
        ),
        *("n", "stop", "stream", "stream_options", "seed", "logprobs", "top_logprobs"),
    }
)
DONE_BY_COMPLETIONS = frozenset(
    {
        *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k"),
        *("n", "stop", "stream", "stream_options", "seed", "logprobs", "echo"),
    }
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "best_of": (1,),
    "suffix": ("",),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Values of what it cannot do that ask for nothing."""


class OrdersFull(Exception):  # noqa: N818 - a state
    """As many orders wait as may."""


class OrderRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A body that cannot be answered. ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrder:
    """How to sample, and where to end. ``top_k`` 0 and ``top_p`` 1 cut nothing; ``top_logprobs`` -1: no logprobs."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...]
    top_logprobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOrder:
    """One body: a prompt, and a seed for each of its completions."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingOrder
    stream: bool
    include_usage: bool
    echo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFacts:
    """What an order is checked against: renderer, tokenizer, vocabulary and longest sequence."""

    renderer: ChatRenderer | PlainRenderer
    tokenizer: ModelTokenizer
    vocab_size: int
    positions_max: int


def read_chat(body: Mapping[str, Any], facts: OrderFacts) -> DecodeOrder:
    """The order of a body of ``/v1/chat/completions``. Raises OrderRefused."""
    _refuse_undone(body, DONE_BY_CHAT)
    wants = body.get("logprobs") is True
    top = _whole(body, "top_logprobs", 0, 0, TOP_LOGPROBS_MAX) if wants else -1
    if not wants and body.get("top_logprobs"):
        raise OrderRefused("'top_logprobs' needs logprobs: true", "top_logprobs")
    prompt_ids = render_messages(body.get("messages"), facts)
    limit = _whole(body, "max_completion_tokens", 0, 1, facts.positions_max)
    return _order(body, prompt_ids, facts, top_logprobs=top, limit=limit)


def read_completion(body: Mapping[str, Any], facts: OrderFacts) -> DecodeOrder:
    """The order of a body of ``/v1/completions``. Raises OrderRefused."""
    _refuse_undone(body, DONE_BY_COMPLETIONS)
    wants = body.get("logprobs") is not None
    top = _whole(body, "logprobs", 0, 0, TOP_LOGPROBS_MAX) if wants else -1
    prompt = body.get("prompt")
    prompt_ids = read_prompt(prompt, facts)
    echo = facts.renderer.decode(prompt_ids) if body.get("echo") else ""
    limit = 16 if body.get("max_tokens") is None else 0
    return _order(body, prompt_ids, facts, top_logprobs=top, limit=limit, echo=echo)


def render_messages(messages: Any, facts: OrderFacts) -> tuple[int, ...]:
    """Ids of a conversation. Raises OrderRefused."""
    read = read_messages(messages)
    try:
        return facts.renderer.render_prompt(read)
    except (DataError, SpecError) as error:
        raise OrderRefused(str(error), "messages") from error


def read_messages(messages: Any) -> tuple[Message, ...]:
    """A conversation. Raises OrderRefused."""
    if not isinstance(messages, list) or not messages:
        raise OrderRefused("'messages' must be a list of messages", "messages")
    return tuple(_message(place, one) for place, one in enumerate(messages))


def read_prompt(prompt: Any, facts: OrderFacts) -> tuple[int, ...]:
    """Ids of a text, or of a list of ids. Raises OrderRefused; several prompts in one body are refused too."""
    if isinstance(prompt, str):
        try:
            ids = facts.tokenizer.encode(prompt)
        except DataError as error:
            raise OrderRefused(str(error), "prompt") from error
    elif isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        ids = tuple(prompt)
    elif isinstance(prompt, list) and len(prompt) == 1:
        return read_prompt(prompt[0], facts)
    else:
        raise OrderRefused(
            "'prompt' must be one text or one list of token ids; send several one by one", "prompt"
        )
    if not ids:
        raise OrderRefused("'prompt' is empty", "prompt")
    if not all(0 <= one < facts.vocab_size for one in ids):
        raise OrderRefused(
            f"'prompt' has a token outside the vocabulary of {facts.vocab_size}", "prompt"
        )
    return ids


def _order(
    body: Mapping[str, Any],
    prompt_ids: tuple[int, ...],
    facts: OrderFacts,
    *,
    top_logprobs: int,
    limit: int,
    echo: str = "",
) -> DecodeOrder:
    room = facts.positions_max - len(prompt_ids)
    asked = limit or _whole(body, "max_tokens", 0, 1, 1 << 30)
    if room < max(asked, 1):
        raise OrderRefused(
            f"This model's maximum context length is {facts.positions_max} tokens. However, you requested"
            f" {asked or 1} output tokens and your prompt contains {len(prompt_ids)} tokens",
            "messages",
            "context_length_exceeded",
        )
    samples = _whole(body, "n", 1, 1, SAMPLES_MAX)
    seed = body.get("seed")
    if seed is not None and type(seed) is not int:
        raise OrderRefused("'seed' must be a whole number", "seed")
    first = secrets.randbits(63) if seed is None else seed
    return DecodeOrder(
        prompt_ids=prompt_ids,
        seeds=tuple((first + place) & (2**63 - 1) for place in range(samples)),
        sampling=SamplingOrder(
            max_tokens=asked or min(room, TOKENS_DEFAULT),
            temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
            top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
            top_k=max(0, _whole(body, "top_k", 0, -1, 1 << 30)),
            stop=_stops(body.get("stop")),
            top_logprobs=top_logprobs,
        ),
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        echo=echo,
    )


def _refuse_undone(body: Mapping[str, Any], done: frozenset[str]) -> None:
    for name, value in body.items():
        if name in done or value is None or value in NEUTRAL.get(name, ()):
            continue
        raise OrderRefused(
            f"'{name[:80]}' is not supported by the embedded engine; serve this model with --engine vllm",
            name[:80],
            "unsupported_parameter",
        )


def _message(place: int, message: Any) -> Message:
    where = f"messages[{place}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise OrderRefused(f"'{where}.role' must be one of {', '.join(sorted(ROLES))}", where)
    others = [name for name, value in message.items() if name not in {"role", "content"} and value]
    if others:
        raise OrderRefused(
            f"'{where}.{others[0][:80]}' is not supported by the embedded engine", where
        )
    return Message(role=message["role"], content=_content(where, message.get("content")))


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content)
    raise OrderRefused(f"'{where}.content' must be text, or parts of type text", where)


def _stops(stop: Any) -> tuple[str, ...]:
    found = (
        (stop,)
        if isinstance(stop, str)
        else tuple(stop or ())
        if isinstance(stop, list | None)
        else None
    )
    if found is None or len(found) > STOPS_MAX or not all(isinstance(one, str) for one in found):
        raise OrderRefused(f"'stop' must be a text or up to {STOPS_MAX} texts", "stop")
    if any(not 0 < len(one) <= STOP_CHARACTERS_MAX for one in found):
        raise OrderRefused(f"'stop' texts have 1 to {STOP_CHARACTERS_MAX} characters", "stop")
    return found


def _whole(body: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise OrderRefused(f"'{name}' must be a whole number from {least} to {most}", name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in {int, float} or not least <= value <= most:
        raise OrderRefused(f"'{name}' must be a number from {least:g} to {most:g}", name)
    return float(value)
