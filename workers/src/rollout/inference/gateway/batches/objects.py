"""Files and batches as OpenAI's API shows them, and as they are kept. Pure: data in, data out.

A batch goes ``validating``, ``in_progress``, ``finalizing``, ``completed``; or to ``failed`` where its file is none,
``expired`` a day after it was made, ``cancelling`` and ``cancelled``. It ends once.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import msgspec

WINDOW, WINDOW_SECONDS = "24h", 24 * 3600
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
OPEN = frozenset({"validating", "in_progress", "cancelling", "finalizing"})
ID_BYTES = 16

Status = Literal[
    "validating",
    "in_progress",
    "cancelling",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelled",
]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a key's. ``filename`` is what a client called it: text, never part of a path. ``created_at``: seconds since 1970."""

    id: str
    owner: str
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]

    def describe(self) -> dict[str, Any]:
        """As OpenAI's."""
        shown = msgspec.structs.asdict(self) | {"object": "file", "status": "processed"}
        del shown["owner"]
        return shown


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a file is no batch. ``line`` counts from 1; None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class FileBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a key's. ``times`` are when it came to each status; ``ending`` is what it will have ended as."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    ending: Status = "completed"
    metadata: dict[str, str] | None = None
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: tuple[LineError, ...] = ()
    times: dict[str, int] = {}

    @property
    def output_id(self) -> str:
        """The file of its answers, once it has ended with any: the same, however often it is written."""
        return derive_file_id(self.id, "output")

    @property
    def error_id(self) -> str:
        """The file of what was not answered."""
        return derive_file_id(self.id, "error")

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ENDED

    def describe(self) -> dict[str, Any]:
        """As OpenAI's."""
        ended = self.status in {"completed", "expired", "cancelled"}
        errors = [msgspec.structs.asdict(one) for one in self.errors]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_id if ended and self.completed else None,
            "error_file_id": self.error_id if ended and self.failed else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{
                f"{status}_at": self.times.get(status)
                for status in (*ENDED, *OPEN)
                if status != "validating"
            },
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.metadata,
        }


def move(batch: FileBatch, status: Status, now: float, **changes: Any) -> FileBatch:
    """The batch in its next status."""
    times = {**batch.times, status: int(now)}
    return msgspec.structs.replace(batch, status=status, times=times, **changes)


def derive_file_id(batch_id: str, what: str) -> str:
    """The id of a file that a batch makes."""
    digest = blake2b(f"{batch_id}:{what}".encode(), digest_size=ID_BYTES)
    return f"file-{digest.hexdigest()}"
