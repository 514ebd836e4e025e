"""What a RolloutSweep says of its runs, as rows: settings, state, value, and what a fork began from. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.cluster.objects import Object, dig
from rollout_api.names import LABEL_RUN_UID

USAGE_RUNS_MAX = 64
"""Runs at work whose pods are looked at in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRow:
    """One run. ``values``: a text for each parameter. ``state``: Waiting, Running, Suspended, or its outcome.

    ``value`` and ``step``: as last seen, None where it has reported none. ``forked_from``: empty for one that begins with
    the model. ``message``: why it failed or was stopped.
    """

    name: str
    uid: str
    values: tuple[str, ...]
    state: str
    step: int | None
    value: float | None
    forked_from: str
    message: str


def parameter_names(sweep: Object) -> tuple[str, ...]:
    """What heads the values: the last part of each field's path, the whole path where two end alike."""
    paths = [str(one.get("field", "")) for one in dig(sweep, "spec.parameters") or ()]
    leaves = [path.rpartition(".")[2] for path in paths]
    count = Counter(leaves)
    return tuple(
        leaf if count[leaf] == 1 else path for leaf, path in zip(leaves, paths, strict=True)
    )


def sweep_rows(sweep: Object) -> list[SweptRow]:
    """Every run of a sweep in the order of its status, forks last; empty before it has one."""
    width = len(parameter_names(sweep))
    return [_row(one, width) for one in dig(sweep, "status.runs") or ()]


def _row(entry: Mapping[str, Any], width: int) -> SweptRow:
    value = entry.get("value")
    values = [*map(str, entry.get("values") or ()), *[""] * width]
    return SweptRow(
        name=str(entry.get("name", "")),
        uid=str(entry.get("uid") or ""),
        values=tuple(values[:width]),
        state=_state(entry),
        step=entry.get("step"),
        value=None if value is None else float(value),
        forked_from=str(dig(entry, "forkedFrom.name") or ""),
        message=str(entry.get("message") or ""),
    )


def _state(entry: Mapping[str, Any]) -> str:
    if outcome := entry.get("outcome"):
        return str(outcome)
    if not entry.get("uid"):
        return "Waiting"
    return "Suspended" if entry.get("suspended") else "Running"


def run_columns(sweep: Object) -> tuple[str, ...]:
    """The headings of ``rollout describe sweep/NAME``."""
    return ("RUN", "STATE", *parameter_names(sweep), "STEP", "VALUE", "FROM", "WHY")


def run_cells(row: SweptRow) -> list[Any]:
    """One run below ``run_columns``."""
    ends = [row.step, row.value, row.forked_from or None, row.message or None]
    return [row.name, row.state, *row.values, *ends]


def select_swept_pods(rows: Sequence[SweptRow]) -> str:
    """The label selector of the pods of runs at work, of ``USAGE_RUNS_MAX`` at most; empty where there is none."""
    uids = [one.uid for one in rows if one.state == "Running"][:USAGE_RUNS_MAX]
    return f"{LABEL_RUN_UID} in ({','.join(uids)})" if uids else ""
