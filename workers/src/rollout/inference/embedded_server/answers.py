"""Answers and stream chunks in OpenAI's shapes, as vLLM's server writes them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout.inference.embedded_server.sampling import PickedToken
from rollout.rendering.tokenizer import ModelTokenizer

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True, kw_only=True, eq=False)
class GrownSample:
    """One completion so far."""

    text: str = ""
    finish: str | None = None
    tokens: list[PickedToken] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """What all chunks of one answer share. ``chat``: of ``/v1/chat/completions``; ``logprobs``: asked for."""

    id: str
    model: str
    created: int
    chat: bool
    logprobs: bool
    tokenizer: ModelTokenizer

    def whole(self, samples: Sequence[GrownSample], num_prompt: int) -> bytes:
        """An answer that is not streamed."""
        choices = [self._choice(place, one) for place, one in enumerate(samples)]
        name = "chat.completion" if self.chat else "text_completion"
        usage = count_usage(num_prompt, sum(len(one.tokens) for one in samples))
        return msgspec.json.encode({**self._head(name), "choices": choices, "usage": usage})

    def opening(self, num_samples: int) -> list[bytes]:
        """The first chunks of a chat's stream: who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [self._event(i, delta, None, None) for i in range(num_samples) if self.chat]

    def chunk(
        self, place: int, text: str, tokens: Sequence[PickedToken], finish: str | None
    ) -> bytes:
        """The next piece of one completion."""
        logprobs = self._logprobs(tokens) if self.logprobs else None
        if not self.chat:
            choice = {"index": place, "text": text, "logprobs": logprobs, "finish_reason": finish}
            return _event({**self._head("text_completion"), "choices": [choice]})
        return self._event(place, {"content": text}, logprobs, finish)

    def usage_event(self, num_prompt: int, num_completion: int) -> bytes:
        """The last chunk, with no choice in it."""
        name = "chat.completion.chunk" if self.chat else "text_completion"
        usage = count_usage(num_prompt, num_completion)
        return _event({**self._head(name), "choices": [], "usage": usage})

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def _event(self, place: int, delta: dict[str, Any], logprobs: Any, finish: str | None) -> bytes:
        choice = {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _choice(self, place: int, sample: GrownSample) -> dict[str, Any]:
        logprobs = self._logprobs(sample.tokens) if self.logprobs else None
        said = (
            {"message": {"role": "assistant", "content": sample.text, "refusal": None}}
            if self.chat
            else {"text": sample.text}
        )
        return {"index": place, **said, "logprobs": logprobs, "finish_reason": sample.finish}

    def _logprobs(self, tokens: Sequence[PickedToken]) -> dict[str, Any]:
        if not self.chat:
            return {
                "tokens": [self._text(one.token_id) for one in tokens],
                "token_logprobs": [one.logprob for one in tokens],
                "top_logprobs": [{self._text(i): p for i, p in one.top} for one in tokens],
                "text_offset": [],
            }
        return {
            "content": [
                {
                    **self._entry(one.token_id, one.logprob),
                    "top_logprobs": [self._entry(i, p) for i, p in one.top],
                }
                for one in tokens
            ]
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._text(token_id)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}

    def _text(self, token_id: int) -> str:
        return self.tokenizer.tokenizer.decode([token_id], skip_special_tokens=False)


def count_usage(num_prompt: int, num_completion: int) -> dict[str, int]:
    """OpenAI's three counts."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def error_body(status: int, message: str, param: str | None, code: str | None) -> bytes:
    """An error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
