"""Events of a stream on their way through: whole events, byte for byte, and a look only at those that end it.

A chunk that neither ends the stream, nor carries usage, nor an error is never parsed. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout.inference.gateway.rules.refusals import ApiRefusal, engine_event
from rollout.inference.gateway.rules.responses import LAST_EVENT

EVENT_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
REASONS_MAX = 128
"""Reasons to end that are noted of one answer: as many as it may have samples."""
EVENT_BYTES_MAX = 8 << 20
"""Of one event; an engine that sends more is broken."""

_NO_CHOICES, _DONE_MARK, _ERROR = b'"choices":[]', b"data: [DONE]", b'data: {"error"'
"""In a string of a client's or a model's their quotes would be escaped, and a line's end too. Sought one by one: an expression of all three
takes three times as long, which every event would pay.
"""
_FINISH = re.compile(rb'"finish_reason": ?"([a-z_]{1,32})"')
_ID = re.compile(rb'"id": ?"([A-Za-z0-9_-]{1,100})"')
_HEAD_BYTES = 256
"""An answer's id is among the first of its fields."""


class StreamBroken(Exception):  # noqa: N818 - a state
    """The engine sent what is no stream of events, or ended without its last one."""


class TokenUsage(msgspec.Struct, frozen=True):
    """What an engine says that a request has used; ``input_tokens`` and ``output_tokens`` are the words of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: dict[str, Any] | None = None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, what a cache had."""
        details = self.prompt_tokens_details or self.input_tokens_details or {}
        found = details.get("cached_tokens")
        return found if isinstance(found, int) else 0


@dataclass(slots=True)
class AnswerNotes:
    """What a trace tells of an answer: its id, and why each of its samples ended. Read off its bytes, which are not parsed."""

    id: str = ""
    finish_reasons: list[str] = field(default_factory=list)

    def look(self, data: bytes) -> None:
        """At whole events, or at a whole answer."""
        if not self.id and (found := _ID.search(data[:_HEAD_BYTES])) is not None:
            self.id = found[1].decode()
        room = REASONS_MAX - len(self.finish_reasons)
        self.finish_reasons += [one.decode() for one in _FINISH.findall(data)[:room]]


class _Answer(msgspec.Struct):
    usage: TokenUsage | None = None
    response: _Answer | None = None


@dataclass(slots=True, kw_only=True)
class EventRelay:
    """One stream. ``keep_usage``: the client asked for the event with the usage.

    ``notes``: where a trace takes its own; None: nobody asks.
    ``responses``: of ``/v1/responses``, whose events are named and end without ``[DONE]``. ``done``: its last event has come; ``failed``: the engine has sent an error in it.
    """

    keep_usage: bool
    responses: bool = False
    notes: AnswerNotes | None = None
    usage: TokenUsage | None = None
    done: bool = False
    failed: bool = False
    chunks: int = 0
    _held: bytes = b""
    _events: int = 0

    def feed(self, data: bytes) -> bytes:
        """What of it may be sent on: whole events. Raises StreamBroken for an event without end."""
        if self._held:
            data = self._held + data
        cut = data.rfind(EVENT_END) + len(EVENT_END)
        if cut < len(EVENT_END):
            if len(data) > EVENT_BYTES_MAX:
                raise StreamBroken(f"an event of more than {EVENT_BYTES_MAX} bytes")
            self._held = data
            return b""
        whole, self._held = data[:cut], data[cut:]
        self.chunks += 1
        if self.notes is not None:
            self.notes.look(whole)
        if self.responses:
            self._note_last(whole)
            return whole
        plain = _NO_CHOICES not in whole and _DONE_MARK not in whole and _ERROR not in whole
        return whole if plain else self._inspect(whole)

    def end(self) -> None:
        """The engine has closed the stream. Raises StreamBroken where something is missing."""
        if not self.done or self._held:
            raise StreamBroken("the stream ended in its middle")

    def refusal(self, why: ApiRefusal) -> bytes:
        """The last event of a stream that cannot go on."""
        if not self.responses:
            return why.event
        fields = {"type": "error", **why.fields, "sequence_number": self._events}
        fields["type"] = "error"
        return b"event: error\ndata: " + msgspec.json.encode(fields) + EVENT_END

    def _note_last(self, whole: bytes) -> None:
        self._events += whole.count(EVENT_END)
        found = LAST_EVENT.search(whole)
        if found is None:
            return
        self.done = True
        self.failed = found[1] in {b"error", b"response.failed"}
        data = whole[found.end() :].partition(EVENT_END)[0]
        self.usage = read_usage(data.removeprefix(b"data: ")) or self.usage

    def _inspect(self, whole: bytes) -> bytes:
        events = (event + EVENT_END for event in whole.split(EVENT_END) if event)
        return b"".join(map(self._look, events))

    def _look(self, event: bytes) -> bytes:
        if event == DONE:
            self.done = True
        elif event.startswith(_ERROR):
            self.failed = True
            return engine_event(event[6:].strip()).event.removesuffix(DONE)
        elif _NO_CHOICES in event:
            self.usage = read_usage(event.removeprefix(b"data: ")) or self.usage
            return event if self.keep_usage else b""
        return event


def read_usage(answer: bytes) -> TokenUsage | None:
    """The usage in an answer or an event; None where there is none."""
    try:
        said = msgspec.json.decode(answer, type=_Answer)
    except (msgspec.MsgspecError, RecursionError):
        return None
    found = said.usage or (said.response.usage if said.response is not None else None)
    if found is None or not (found.input_tokens or found.output_tokens):
        return found
    return msgspec.structs.replace(
        found, prompt_tokens=found.input_tokens, completion_tokens=found.output_tokens
    )
