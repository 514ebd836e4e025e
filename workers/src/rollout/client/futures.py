"""Answers that are waited for, in a thread (``result``) or in a coroutine (``await``)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ApiFuture(Generic[T]):
    """A call's answer. Whoever stops waiting for it does not take the call back."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> T:
        """Wait up to ``timeout`` seconds (None: as long as it takes). Raises ServiceError, TimeoutError."""
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:  # noqa: ASYNC109 - the shape that programs know
        """``result`` for coroutines."""
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._future)), timeout)

    def future(self) -> Future[T]:
        """The future of ``concurrent.futures`` behind it."""
        return self._future

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()


class ClientFuture(ApiFuture[T]):
    """A client that is being made. Asked for anything of the client's, it waits for it first."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.result(), name)
