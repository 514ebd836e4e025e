"""The rows of a run's data set, from a plugin: had once, held in memory, and named by a digest of what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from rollout.data.jsonl import parse_line
from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.rows.mapping import BadRecord, FieldMapping, map_record
from rollout.plugins.row_messages import find_unusable
from rollout.plugins.sidecar.kinds.suite import read_rows
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRows:
    """Those that can be used, in the plugin's order, each a line of JSON; ``digest`` is of these. ``bad`` tells what was left out."""

    lines: Sequence[bytes]
    mapping: FieldMapping
    digest: str
    bad: BadRecords

    def __len__(self) -> int:
        return len(self.lines)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions."""
        return [
            map_record(self.mapping, parse_line(self.lines[position])) for position in positions
        ]


def open_rows(
    plugin: PluginFolder,
    parameters: Mapping[str, str],
    split: str,
    mapping: FieldMapping,
    on_bad: OnBadRecord,
) -> ServedRows:
    """All rows of a split, of a process that ends with them.

    Raises DataError naming the plugin, and the first rows that cannot be used; SpecError where it does not come up.
    """
    lines, bad, content = [], BadRecords(), blake3()
    for place, record in enumerate(read_rows(plugin, parameters, split)):
        try:
            line = _line(record)
            map_record(mapping, parse_line(line))
        except BadRecord as error:
            bad.add(f"row {place}", str(error))
            continue
        lines.append(line)
        content.update(line + b"\n")
    bad.settle(f"plugin {plugin.title}, rows of {split}", len(lines), on_bad)
    digest = f"blake3:{content.hexdigest()}"
    return ServedRows(lines=lines, mapping=mapping, digest=digest, bad=bad)


def _line(record: dict[str, Any]) -> bytes:
    """A row as JSON; in which order it names its fields does not count. Raises BadRecord for what no process of a run reads."""
    if problem := find_unusable(record):
        raise BadRecord(problem)
    return json.dumps(record, sort_keys=True).encode()
