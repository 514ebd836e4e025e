"""Requests that are open: by whom, since when, and what ends one from outside its own task.

A deadline that passes, a key that is revoked, a client that does not read, an engine that says nothing: one look a second
at all of them, so that an event of a stream costs no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from rollout.inference.gateway.rules.refusals import ApiRefusal

COMMENT = b": keep-alive\n\n"
COMMENT_SECONDS = 15.0
"""Node's client drops a stream that is silent for five minutes; some home-made ones know no comments, and see none earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBounds:
    """Seconds: of a whole request, of silence inside a stream, and of one write that the client does not read."""

    request_seconds: float = 600.0
    idle_seconds: float = 120.0
    write_seconds: float = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """One open request. ``moved_at``: its last sign of life; ``write`` is set once its stream has begun.

    ``aborted``: why its task was cancelled, where that was us and not the client.
    """

    task: asyncio.Task[object]
    key_id: str
    version: str
    began_at: float
    moved_at: float
    writing: bool = False
    write: Callable[[bytes], Awaitable[None]] | None = None
    aborted: ApiRefusal | None = None

    def abort(self, why: ApiRefusal) -> None:
        """End it with this refusal; idempotent."""
        if self.aborted is None:
            self.aborted = why
            self.task.cancel()


class LiveRequests:
    """All open requests of a gateway."""

    def __init__(self, bounds: LiveBounds) -> None:
        self._bounds = bounds
        self._open: set[LiveRequest] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(tuple(self._open))

    def begin(self, key_id: str, version: str, now: float) -> LiveRequest:
        """Note the present task's request."""
        task = asyncio.current_task()
        assert task is not None
        live = LiveRequest(task=task, key_id=key_id, version=version, began_at=now, moved_at=now)
        self._open.add(live)
        return live

    def end(self, live: LiveRequest) -> None:
        """It has ended."""
        self._open.discard(live)

    async def sweep(self, now: float, keeps: Callable[[str], bool]) -> None:
        """End what may not go on; comment on streams that are silent. ``keeps``: whether a key was not revoked."""
        for live in tuple(self._open):
            why = self._judge(live, now, keeps)
            if why is not None:
                live.abort(why)
            elif live.write and not live.writing and now - live.moved_at > COMMENT_SECONDS:
                await live.write(COMMENT)

    def abort_all(self, why: ApiRefusal) -> None:
        """End every request that is open."""
        for live in tuple(self._open):
            live.abort(why)

    def _judge(
        self, live: LiveRequest, now: float, keeps: Callable[[str], bool]
    ) -> ApiRefusal | None:
        bounds = self._bounds
        if not keeps(live.key_id):
            return ApiRefusal(401, "this key was revoked", code="invalid_api_key", reason="revoked")
        if now - live.began_at > bounds.request_seconds:
            seconds = f"{bounds.request_seconds:g}"
            return ApiRefusal(
                504, f"not answered within {seconds} s", code="timeout", reason="deadline"
            )
        if live.writing and now - live.moved_at > bounds.write_seconds:
            return ApiRefusal(
                408, "the client does not read", code="slow_client", reason="slow_client"
            )
        if live.write and now - live.moved_at > bounds.idle_seconds:
            return ApiRefusal(504, "the engine says nothing", code="timeout", reason="engine_idle")
        return None
