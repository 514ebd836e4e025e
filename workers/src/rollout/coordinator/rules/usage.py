"""What a run's pods were there for, day by day: lives of the ledger as its status tells them. Days are of UTC."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from rollout.common.quantities import exact_quantity
from rollout.ledger.views import LifeView
from rollout_api.v1alpha1.run_status import DayOfUse

DAYS_MAX = 1000
"""Rows that a status holds: the newest."""
DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sum_days(lives: Sequence[LifeView]) -> tuple[DayOfUse, ...]:
    """One row for each day, role and shape of pods; a worker's lives that overlap are counted once."""
    sums: dict[tuple[int, str, str], int] = defaultdict(int)
    reached: dict[str, int] = {}
    for life in sorted(lives, key=lambda one: (one.began_ms, one.heard_ms)):
        if "machine" in life.place:
            continue
        begin = max(life.began_ms, reached.get(life.worker, life.began_ms))
        reached[life.worker] = max(begin, life.heard_ms)
        shape = json.dumps(life.place, sort_keys=True)
        for day, milliseconds in split_days(begin, life.heard_ms):
            sums[day, life.role, shape] += milliseconds
    newest = sorted(sums.items())[-DAYS_MAX:]
    return tuple(_row(*key, milliseconds) for key, milliseconds in newest)


def split_days(begin_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """The days between two moments, by their number since 1970, each with its milliseconds."""
    while begin_ms < end_ms:
        day = begin_ms // DAY_MS
        until = min(end_ms, (day + 1) * DAY_MS)
        yield day, until - begin_ms
        begin_ms = until


def _row(day: int, role: str, shape: str, milliseconds: int) -> DayOfUse:
    place = json.loads(shape)
    told: dict[str, Any] = {
        **{name: place[name] for name in ("pods", "instanceType", "capacity") if name in place},
        "day": (EPOCH + timedelta(days=day)).strftime("%Y-%m-%d"),
        "role": role.capitalize(),
        "milliseconds": milliseconds,
        "requests": add_requests(place.get("requests", ())),
    }
    return DayOfUse(**told)


def add_requests(containers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a pod asks for, its containers together, as quantities; below a thousandth of one it is rounded."""
    sums: dict[str, Fraction] = defaultdict(Fraction)
    for requests in containers:
        for resource, text in requests.items():
            sums[resource] += exact_quantity(str(text))
    return {name: _quantity(amount) for name, amount in sorted(sums.items())}


def _quantity(amount: Fraction) -> str:
    return str(int(amount)) if amount.denominator == 1 else f"{round(amount * 1000)}m"
