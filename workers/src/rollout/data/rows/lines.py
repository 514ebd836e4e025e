"""Lines of OpenAI's batch format: what is around a body, whatever that asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.data.rows.fields import BadRecord, kind

CUSTOM_ID_CHARACTERS_MAX = 512
LINE_FIELDS = frozenset({"custom_id", "method", "url", "body"})
PASSED_OVER = frozenset({"user", "metadata", "store", "service_tier"})
"""Fields of a body that change no token of its answer."""


class BadRequest(BadRecord):
    """A line that is JSON and still no request; ``code`` is what the error file says."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


def is_batch_line(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of OpenAI's batch format."""
    return "custom_id" in record and "body" in record


def custom_id_of(record: Mapping[str, Any]) -> str:
    """What the line calls itself. Raises BadRequest."""
    found = record["custom_id"]
    if not isinstance(found, str) or not 1 <= len(found) <= CUSTOM_ID_CHARACTERS_MAX:
        raise BadRequest(
            "invalid_custom_id",
            f"custom_id: expected text of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters, got {found!r:.40}",
        )
    return found


def body_of(record: Mapping[str, Any], fields: Mapping[str, frozenset[str]]) -> Mapping[str, Any]:
    """The line's body, of one of the urls in ``fields``, which has no other fields than these. Raises BadRequest."""
    if unknown := sorted(record.keys() - LINE_FIELDS):
        raise BadRequest("invalid_request", f"{unknown[0]}: no field of a batch line")
    if record.get("method", "POST") != "POST":
        raise BadRequest("invalid_method", f"method: expected POST, got {record['method']!r:.40}")
    url = record.get("url")
    if not isinstance(url, str) or url not in fields:
        raise BadRequest(
            "invalid_url",
            f"url: expected {' or '.join(fields)}, got {url!r:.80}; this run answers no other",
        )
    body = record["body"]
    if not isinstance(body, Mapping):
        raise BadRequest("invalid_request", f"body: expected an object, got {kind(body)}")
    if unknown := sorted(body.keys() - fields[url] - PASSED_OVER):
        raise BadRequest(
            "unsupported_parameter",
            f"body.{unknown[0]} is not supported by this version: remove it",
        )
    model = body.get("model", "")
    if not isinstance(model, str):
        raise BadRequest("invalid_request", f"body.model: expected text, got {kind(model)}")
    return body
