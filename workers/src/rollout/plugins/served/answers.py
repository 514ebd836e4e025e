"""What every kind answers with: handlers by method, and failures with their owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message as Frame

from rollout.errors import InfrastructureError
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.user_code import describe_failure

Handler = Callable[[Any], Awaitable[Frame]]
Methods = Mapping[str, tuple[Handler, type[Frame]]]
LEASE_SECONDS = 3600.0
"""An episode that nothing is heard of for so long is closed."""
EPISODES_MAX = 65_536


class Served(Protocol):
    """One kind of plugin, as it is served."""

    @property
    def methods(self) -> Methods:
        """What is served."""
        ...

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Take the parameters, once. May raise whatever the author's code does."""
        ...


def told_failure(error: Exception) -> contract.Failure:
    """What went wrong, and whose doing it is."""
    infrastructure = isinstance(error, InfrastructureError)
    return contract.Failure(
        owner=contract.OWNER_INFRASTRUCTURE if infrastructure else contract.OWNER_TASK,
        code=type(error).__name__,
        message=describe_failure(error)[:2000],
    )
