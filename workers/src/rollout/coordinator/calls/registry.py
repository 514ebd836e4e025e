"""Which function answers which call. A handler names its route above itself; nothing else lists it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rollout.coordinator.context import RunContext
from rollout.protocol.envelope import Envelope
from rollout.protocol.messages import WireMessage
from rollout.protocol.routes import A, Q, Route

Handler = Callable[[RunContext, Envelope, Q], Awaitable[A]]
"""From the run, who calls and what is asked to the answer. Raises RolloutError to refuse."""

HANDLERS: dict[str, Handler[Any, WireMessage]] = {}
"""By the route's path."""


def answers(route: Route[Q, A]) -> Callable[[Handler[Q, A]], Handler[Q, A]]:
    """The function below answers ``route``."""

    def register(handler: Handler[Q, A]) -> Handler[Q, A]:
        assert route.path not in HANDLERS, f"{route.path} has two handlers"
        HANDLERS[route.path] = handler
        return handler

    return register
