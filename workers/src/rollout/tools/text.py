"""What tools say, as text that a conversation may hold: bounded, and without what a terminal obeys."""

from __future__ import annotations

import re

from rollout.tools.sandbox.contract import Stream

CHARACTERS_MAX = 8000
"""Of one answer."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def clean_text(text: str) -> str:
    """Without terminal escapes, control characters and what turns the direction of writing."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def cut_text(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """Its beginning and end, and between them how much was left out."""
    if len(text) <= characters_max:
        return text
    head = characters_max * 3 // 4
    tail = characters_max - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[len(text) - tail :]}"


def stream_text(stream: Stream) -> str:
    """What a command wrote, bytes left out in the middle told."""
    head = stream.head.decode(errors="replace")
    left_out = stream.num_bytes - len(stream.head) - len(stream.tail)
    between = f"\n[... {left_out} bytes left out ...]\n" if left_out > 0 else ""
    return clean_text(head + between + stream.tail.decode(errors="replace"))
