"""The rows of a suite or of a data set in pages, as a plugin in Python serves them: read once for each split, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from google.protobuf.message import Message as Frame

from rollout.plugins.served.answers import Methods, told_failure
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.kinds.suite import BYTES_MAX, ROWS_MAX
from rollout.plugins.sidecar.wire import row_json

PAGE_ROWS = 1000
PAGE_CHARACTERS = 4 << 20


class RowService:
    """``rows(split)`` gives all of a split's."""

    def __init__(self, rows: Callable[[str], Iterable[Mapping[str, Any]]]) -> None:
        self._rows = rows
        self._texts: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    async def answer(self, request: contract.RowsRequest) -> Frame:
        """One page."""
        try:
            texts = await asyncio.to_thread(self._all, request.split)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything: it is the answer
            return contract.RowsResponse(failure=told_failure(error))
        page: list[str] = []
        size = 0
        for text in texts[request.start : request.start + PAGE_ROWS]:
            size += len(text)
            if page and size > PAGE_CHARACTERS:
                break
            page.append(text)
        return contract.RowsResponse(rows_json=page, total=len(texts))

    def _all(self, split: str) -> list[str]:
        with self._lock:
            if split not in self._texts:
                self._texts[split] = list(_bounded(map(row_json, self._rows(split))))
            return self._texts[split]


def _bounded(texts: Iterable[str]) -> Iterator[str]:
    """The same. Raises ValueError for more than anybody takes, so that rows without an end fill no memory."""
    size = 0
    for place, text in enumerate(texts):
        size += len(text)
        if place >= ROWS_MAX or size > BYTES_MAX:
            raise ValueError(f"more than {ROWS_MAX} rows, or {BYTES_MAX >> 20} MiB of them")
        yield text


class DataService:
    """A data set: a function ``rows(split, **parameters)``, or a class with ``rows(split)``, constructed with the parameters."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._rows = RowService(lambda _: ())

    @property
    def methods(self) -> Methods:
        """What is served."""
        return {"Rows": (self._give, contract.RowsRequest)}

    async def _give(self, request: contract.RowsRequest) -> Frame:
        return await self._rows.answer(request)

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Build it."""
        if isinstance(self._data, type):
            self._rows = RowService(self._data(**parameters).rows)
        else:
            self._rows = RowService(partial(self._data, **parameters))
