"""What goes with every call beside its body: who calls, and how its calls are written.

A worker and its coordinator are replaced at different times. Each side says the format of its calls, and
refuses another one by name before it reads the body, so that a rolling upgrade ends in a sentence and never
in a field that is missing. The operator speaks JSON that grows by optional fields only: it says no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.errors import CallFormatMismatch, CoordinatorError

CALL_FORMAT = 4
"""Raised when an older worker's call would be misread, or an older coordinator's answer.

1 named the worker in each body and said no format.
"""

FORMAT, WORKER, INCARNATION = "X-Rollout-Format", "X-Rollout-Worker", "X-Rollout-Incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The sender of a call, and how its calls are written."""

    worker: str = ""
    """Name of the worker (``actor-0``); empty for who is none."""
    incarnation: int = 0
    """Of its process; an older one's calls are refused. 0: not registered yet."""
    format: int = CALL_FORMAT
    """Of its calls; another one than ``CALL_FORMAT`` is refused before the body is read."""

    def headers(self) -> dict[str, str]:
        """As HTTP carries it."""
        return {
            FORMAT: str(self.format),
            WORKER: self.worker,
            INCARNATION: str(self.incarnation),
        }


def read_envelope(headers: Mapping[str, str]) -> Envelope:
    """The sender of a request by its headers; a number that is none is a format or process of nobody."""
    return Envelope(
        worker=headers.get(WORKER, ""),
        incarnation=read_number(headers.get(INCARNATION, "0"), 0),
        format=read_number(headers.get(FORMAT, "1"), 0),
    )


def read_number(text: str, otherwise: int) -> int:
    """A whole number of a header, at most nine digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else otherwise


def check_sender(envelope: Envelope) -> None:
    """Raise CallFormatMismatch for a worker of another format, CoordinatorError for one without a name."""
    check_format(envelope.format)
    if not envelope.worker:
        raise CoordinatorError(f"expected the worker's name in the header {WORKER}, met none")


def check_format(worker: int) -> None:
    """Raise CallFormatMismatch unless the worker's calls are written as this coordinator's."""
    if worker != CALL_FORMAT:
        raise CallFormatMismatch(
            f"the worker's calls have format {worker}, this coordinator's {CALL_FORMAT}: run both from"
            " one release of rollout (pods of one run from one image)"
        )


def check_answer_format(coordinator: int) -> None:
    """Raise CallFormatMismatch unless the coordinator's calls are written as this worker's."""
    if coordinator != CALL_FORMAT:
        raise CallFormatMismatch(
            f"the coordinator's calls have format {coordinator}, this worker's {CALL_FORMAT}: run both"
            " from one release of rollout (pods of one run from one image)"
        )
