"""ASGI middleware of the server: whoever wants tokens names the version, and it must be the one served.

A server that was restarted, or whose last load was not verified, serves no version and refuses everything
but control routes. ``/start_weight_update`` and ``/sleep`` close the gate; ``/resume`` with the header opens it for
that version.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rollout_vllm.stacks import watch_loop

HEADER = "x-rollout-version"
OK = 200
CONFLICT = 409

OPEN_ROUTES = frozenset(
    {
        *("/pause", "/resume", "/abort_requests", "/reset_prefix_cache", "/collective_rpc"),
        *("/start_weight_update", "/update_weights", "/finish_weight_update"),
        *("/init_weight_transfer_engine", "/update_weight_version"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        *("/sleep", "/wake_up"),
    }
)
"""Posted to without a version: they produce no tokens."""
CLOSING_ROUTES = frozenset({"/start_weight_update", "/sleep"})
"""Behind these the weights are others, or nobody knows yet."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class VersionGate:
    """Owns which version is served, by its label; one front-end process only."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._serving: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 409."""
        watch_loop(asyncio.get_running_loop())
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif scope["path"] in OPEN_ROUTES:
            await self._control(scope, receive, send)
        elif self._serving is None or _version(scope) != self._serving:
            await _refuse(send, _version(scope), self._serving)
        else:
            await self._app(scope, receive, send)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in CLOSING_ROUTES:
            self._serving = None

        async def note(message: Message) -> None:
            if scope["path"] == "/resume" and message.get("status") == OK:
                self._serving = _version(scope) or self._serving
            await send(message)

        await self._app(scope, receive, note)


def _version(scope: Scope) -> str | None:
    found = dict(scope["headers"]).get(HEADER.encode())
    return None if found is None else found.decode("latin-1")


async def _refuse(send: Send, wanted: str | None, serving: str | None) -> None:
    text = {"error": f"asked for version {wanted}, serving {serving or 'none'}: load it first"}
    body = json.dumps(text).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": CONFLICT, "headers": headers})
    await send({"type": "http.response.body", "body": body})
