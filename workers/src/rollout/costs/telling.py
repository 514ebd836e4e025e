"""What runs cost, as people and programs read it. Rounds; what comes before is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from rollout.costs.billing import Total, bill, sum_up, total_of
from rollout.costs.prices import PriceTable, read_table
from rollout.costs.reading import read_with_neighbours
from rollout.costs.usage import RunUsage
from rollout.errors import RolloutError

PRICES_VARIABLE = "ROLLOUT_PRICES"
"""The file with the table, where a command is given none."""
SUM_DIGITS, UNIT_DIGITS, JSON_DIGITS = 2, 6, 6
"""Decimals of a sum for people, of a price of 1,000 of something, and of either for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What one run costs so far. ``per_samples`` and ``per_tokens`` are of 1,000 that were trained on; None: unknown."""

    usage: RunUsage
    total: Total

    @property
    def per_samples(self) -> Fraction | None:
        """Of 1,000 samples."""
        return self._per_thousand(self.usage.samples)

    @property
    def per_tokens(self) -> Fraction | None:
        """Of 1,000 tokens."""
        return self._per_thousand(self.usage.tokens)

    def _per_thousand(self, number: int) -> Fraction | None:
        cost = self.total.cost
        return None if cost is None or not number or self.total.unpriced else cost * 1000 / number


def cost_of(usages: Sequence[RunUsage], run: str, table: PriceTable | None) -> RunCost:
    """One of several runs, which may share machines."""
    charges = [one for one in bill(usages, table) if one.run == run]
    usage = next(one for one in usages if one.run == run)
    return RunCost(usage=usage, total=total_of(run, charges))


def round_to(value: Fraction, digits: int) -> str:
    """A decimal of so many digits after the point, half to even."""
    scaled = round(value * 10**digits)
    return f"{Decimal(scaled).scaleb(-digits):.{digits}f}"


def money(value: Fraction | None, currency: str, digits: int = SUM_DIGITS) -> str:
    """``12.34 EUR``; a dash where it is unknown. What is not 0 does not look like it."""
    if value is None:
        return "-"
    text = round_to(value, digits)
    if value and not float(text):
        return f"< {round_to(Fraction(1, 10**digits), digits)} {currency}"
    return f"{text} {currency}"


def unpriced_text(unpriced: Mapping[str, Fraction]) -> str:
    """``cpu: 3.20 h``; empty where all has a price."""
    return ", ".join(f"{what}: {round_to(hours, 2)} h" for what, hours in unpriced.items())


def describe(cost: RunCost, currency: str) -> str:
    """One line of it."""
    if cost.usage.stays is None:
        return f"unknown: {cost.usage.why}"
    words = [money(cost.total.cost, currency)] if cost.total.cost is not None else []
    for name, value in (("samples", cost.per_samples), ("tokens", cost.per_tokens)):
        if value is not None:
            words.append(f"{money(value, currency, UNIT_DIGITS)} per 1,000 {name}")
    if cost.total.unpriced:
        words.append(f"without a price: {unpriced_text(cost.total.unpriced)}")
    for name, share in (
        ("the learner waited", cost.usage.waited),
        ("lost attempts", cost.usage.lost),
    ):
        if share is not None:
            words.append(f"{name} {share:.1%}")
    return "; ".join(words) or "nothing has been noted yet"


def describe_folder(folder: Path, environment: Mapping[str, str]) -> str | None:
    """The line of a run of this machine; None where nobody names a table, else what is wrong with it."""
    path = environment.get(PRICES_VARIABLE)
    if not path:
        return None
    try:
        table = read_table(Path(path))
        usages = read_with_neighbours(folder)
        return describe(cost_of(usages, folder.name, table), table.currency)
    except RolloutError as error:
        return f"unknown: {error}"


def rows(totals: Sequence[Total]) -> list[dict[str, Any]]:
    """Sums for programs: decimals as text, None for what is unknown."""
    return [
        {
            "key": one.key,
            "cost": None if one.cost is None else round_to(one.cost, JSON_DIGITS),
            "unpriced_hours": {
                what: round_to(hours, JSON_DIGITS) for what, hours in one.unpriced.items()
            },
        }
        for one in totals
    ]


def document(
    usages: Sequence[RunUsage], chosen: frozenset[str], by: str, table: PriceTable | None
) -> dict[str, Any]:
    """The whole answer for programs: sums by ``by`` and the sum of all, of ``chosen`` runs."""
    charges = [one for one in bill(usages, table) if one.run in chosen]
    return {
        "currency": None if table is None else table.currency,
        "by": by,
        "rows": rows(sum_up(charges, by)),
        "total": rows([total_of("total", charges)])[0],
        "unknown": {one.run: one.why for one in usages if one.run in chosen and one.stays is None},
    }
