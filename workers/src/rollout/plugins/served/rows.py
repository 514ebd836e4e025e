"""The rows of a suite in pages, as a plugin in Python serves them: read once for each split, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message as Frame

from rollout.plugins.served.answers import told_failure
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
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
                self._texts[split] = [row_json(one) for one in self._rows(split)]
            return self._texts[split]
