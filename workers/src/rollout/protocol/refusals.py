"""How an error of the coordinator travels: which HTTP status it has, and what the caller raises."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from rollout import errors
from rollout.common.bounded import UNREADABLE
from rollout.errors import (
    CallFormatMismatch,
    CoordinatorError,
    Fenced,
    LedgerBroken,
    LedgerFull,
    LedgerSuperseded,
    LedgerUnreachable,
    RolloutError,
    StaleSettings,
)
from rollout.protocol.messages import Refusal

STATUSES: tuple[tuple[type[RolloutError], HTTPStatus], ...] = (
    (CallFormatMismatch, HTTPStatus.BAD_REQUEST),
    (Fenced, HTTPStatus.CONFLICT),
    (StaleSettings, HTTPStatus.CONFLICT),
    (LedgerFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (LedgerUnreachable, HTTPStatus.SERVICE_UNAVAILABLE),
    (LedgerSuperseded, HTTPStatus.SERVICE_UNAVAILABLE),
    (LedgerBroken, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""The status of a refusal by its error; every other one is UNPROCESSABLE_ENTITY."""


def status_of(error: RolloutError) -> HTTPStatus:
    """What a refusal with this error is answered with."""
    found = (status for kind, status in STATUSES if isinstance(error, kind))
    return next(found, HTTPStatus.UNPROCESSABLE_ENTITY)


def build_refusal(error: Exception) -> Refusal:
    """The body of a refusal."""
    return Refusal(error=type(error).__name__, message=str(error))


def read_refusal(path: str, status: int, body: bytes) -> RolloutError:
    """What the caller of ``path`` raises: the error that the refusal names, as far as it is known here."""
    try:
        refusal = msgspec.msgpack.decode(body, type=Refusal)
    except UNREADABLE:
        return CoordinatorError(f"the coordinator answered {path} with HTTP {status}")
    kind = getattr(errors, refusal.error, None)
    known = isinstance(kind, type) and issubclass(kind, RolloutError)
    return kind(refusal.message) if known else CoordinatorError(refusal.message)
