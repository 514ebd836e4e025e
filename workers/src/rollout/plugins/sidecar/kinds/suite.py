"""The rows of a plugin's suite or data set: had in pages, once, from a process that ends with them, and checked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rollout.errors import DataError, InfrastructureError, PluginError
from rollout.plugins.sidecar.client import (
    DATA_ROWS,
    DEATHS_MAX,
    SUITE_ROWS,
    PluginClient,
    PluginDied,
)
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.plugins.sidecar.wire import failure_of

PAGE_SECONDS = 120.0
ROWS_SECONDS = 1800.0
"""For all pages of a split together."""
ROWS_MAX = 1_000_000
BYTES_MAX = 1 << 30


class RowPages:
    """What has been had of one split. ``rows`` are JSON objects."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._total: int | None = None
        self._size_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all have been had."""
        return self._total == len(self.rows)

    def add(self, page: contract.RowsResponse) -> None:
        """The next ones. Raises PluginError for what is no page of them, InfrastructureError where it says so."""
        if page.HasField("failure"):
            raise failure_of(page.failure)
        if self._total not in (None, page.total):
            raise PluginError(f"it has {page.total} rows, and had {self._total} before")
        self._total = page.total
        if page.total > ROWS_MAX:
            raise PluginError(f"it has {page.total} rows; at most {ROWS_MAX} are taken")
        if len(self.rows) + len(page.rows_json) > page.total:
            raise PluginError(f"it gave more rows than the {page.total} that it has")
        if not page.rows_json and not self.is_whole:
            raise PluginError(f"it gave {len(self.rows)} of its {page.total} rows, and then none")
        self._size_bytes += sum(len(one) for one in page.rows_json)
        if self._size_bytes > BYTES_MAX:
            raise PluginError(f"its rows are more than {BYTES_MAX >> 20} MiB")
        for text in page.rows_json:
            self.rows.append(heard_row(text, len(self.rows)))


def heard_row(text: str, place: int) -> dict[str, Any]:
    """A row as it came, at ``place`` of its split. Raises PluginError."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PluginError(f"row {place} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise PluginError(f"row {place}: expected a JSON object, got {text[:40]}")
    return row


def ask_page(client: PluginClient, split: str, start: int, seconds: float) -> contract.RowsResponse:
    """Rows of a split from ``start`` on, unchecked. Raises PluginError, InfrastructureError, SpecError."""
    call = DATA_ROWS if client.plugin.manifest.kind == "data" else SUITE_ROWS
    return client.ask(call, contract.RowsRequest(split=split, start=start), seconds)


def ask_rows(client: PluginClient, split: str) -> list[dict[str, Any]]:
    """All rows of a split; data is also asked what is behind them. Raises PluginError, InfrastructureError, SpecError."""
    pages, until = RowPages(), time.monotonic() + ROWS_SECONDS
    while not pages.is_whole:
        left = until - time.monotonic()
        if left <= 0:
            raise PluginError(
                f"it gave {len(pages.rows)} rows in {ROWS_SECONDS:g} s, and not all: give larger pages"
            )
        pages.add(ask_page(client, split, len(pages.rows), min(left, PAGE_SECONDS)))
    if client.plugin.manifest.kind == "data":
        pages.add(ask_page(client, split, len(pages.rows), PAGE_SECONDS))
    return pages.rows


def read_rows(
    plugin: PluginFolder, parameters: Mapping[str, str], split: str
) -> list[dict[str, Any]]:
    """The same, of a process that is started for it, and of another where it dies. Raises DataError naming the plugin, SpecError."""
    client = PluginClient(plugin, parameters)
    try:
        for _ in range(DEATHS_MAX - 1):
            with suppress(PluginDied):
                return ask_rows(client, split)
        return ask_rows(client, split)
    except (PluginError, InfrastructureError) as error:
        raise DataError(f"plugin {plugin.title}, rows of {split}: {error}") from error
    finally:
        client.close()
