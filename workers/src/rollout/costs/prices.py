"""The price table that a user keeps: what an hour costs, and from which day. Parsed from text that nobody has looked at.

Money is never a float: prices are whole numbers or quoted decimals, sums are exact fractions, and only what is printed
is rounded. Days begin at midnight UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from rollout.common.quantities import exact_quantity
from rollout.costs.currencies import CURRENCIES
from rollout.errors import SpecError
from rollout.runs.yaml_reading import load_plain
from rollout_api.base import ApiModel, Name, OneOf, many
from rollout_api.problems import problems_from_validation
from rollout_api.v1alpha1.pods.pods import LabelKey, Quantity

TABLE_BYTES_MAX = 1 << 18
PRICES_MAX = 5000
ANY_MACHINE = "*"
GIBI = 1024**3
PER_GIB = frozenset({"memory", "ephemeral-storage"})
"""Resources that are priced per GiB; all others per whole one."""
_MONEY = re.compile(r"\d{1,12}(\.\d{1,12})?")

Capacity = Literal["OnDemand", "Spot"]
Kind = Literal["machine", "instance_type", "resource"]


def _money(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and _MONEY.fullmatch(value):
        return value
    raise ValueError('expected money that is 0 or more, as a decimal in quotes: "2.50"')


def _day(value: object) -> object:
    if isinstance(value, str | date) and not isinstance(value, datetime):
        return value
    raise ValueError("expected a day in UTC: 2026-01-31")


def _currency(value: str) -> str:
    if value not in CURRENCIES:
        raise ValueError("expected a currency's code of ISO 4217, such as EUR or USD")
    return value


Money = Annotated[str, BeforeValidator(_money)]
Day = Annotated[date, BeforeValidator(_day)]
Currency = Annotated[Name, AfterValidator(_currency)]


class Price(OneOf):
    """What one thing costs an hour, from a day until the next price of the same thing."""

    members: ClassVar[tuple[str, ...]] = ("machine", "instance_type", "resource")

    machine: Name | None = None
    """A machine that runs stand on, by its host name; `*`: every one without a price of its own."""
    instance_type: Name | None = None
    """Nodes of a cluster, by their type: `p5.48xlarge`."""
    resource: LabelKey | None = None
    """What a pod asks for: `cpu` (a core), `memory` (a GiB), or a device such as `nvidia.com/gpu`."""
    capacity: Capacity | None = None
    """Whether this is the price of capacity that may be taken away. Unset: of either, where there is no closer one."""
    since: Day = Field(alias="from")
    """The first day on which it holds, UTC."""
    per_hour: Money
    """Price of an hour."""
    holds: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16)
    """What a node of this type holds: a pod pays for its largest share of it. Unset: for the whole node."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.holds and self.instance_type is None:
            raise ValueError("holds belongs to instanceType: what a node of that type holds")
        if self.machine is not None and self.capacity is not None:
            raise ValueError(
                "capacity belongs to instanceType and resource; a machine has one kind"
            )
        if any(exact_quantity(text) == 0 for text in self.holds.values()):
            raise ValueError("holds: a node holds more than 0 of what it is named for")
        return self

    @property
    def key(self) -> tuple[str, str, Capacity | None]:
        """What it is the price of."""
        return self.chosen, self.value, self.capacity

    @property
    def from_ms(self) -> int:
        """When it begins, in milliseconds since 1970."""
        midnight = datetime(self.since.year, self.since.month, self.since.day, tzinfo=UTC)
        return int(midnight.timestamp()) * 1000

    @property
    def per_ms(self) -> Fraction:
        """Price of a millisecond, exactly."""
        return Fraction(self.per_hour) / 3_600_000


class Team(ApiModel):
    """Who a run is counted for."""

    label: LabelKey
    """A label of the run; runs without it are counted for their namespace."""


class PriceTable(ApiModel):
    """Prices in one currency."""

    currency: Currency
    """Code of ISO 4217. One table has one: sums of two say nothing."""
    team: Team | None = None
    """Unset: a team is a namespace."""
    prices: tuple[Price, ...] = many(PRICES_MAX)
    """In any order."""

    @model_validator(mode="after")
    def _one_price_a_moment(self) -> Self:
        seen: set[tuple[object, ...]] = set()
        for number, price in enumerate(self.prices):
            mark = (*price.key, price.since)
            if mark in seen:
                raise ValueError(
                    f"prices[{number}]: {price.chosen} {price.value} has two prices from {price.since}: keep one"
                )
            seen.add(mark)
        return self

    def series(self, kind: Kind, name: str, capacity: Capacity | None) -> tuple[Price, ...]:
        """The prices of one thing, oldest first: of its capacity where there are such, else of either."""
        for wanted in dict.fromkeys((capacity, None)):
            found = [price for price in self.prices if price.key == (kind, name, wanted)]
            if found:
                return tuple(sorted(found, key=lambda price: price.since))
        return ()


def load_table(name: str, text: str) -> PriceTable:
    """A table of prices. Raises SpecError that names the file, the field and the fix."""
    if len(text.encode(errors="replace")) > TABLE_BYTES_MAX:
        raise SpecError(f"{name}: more than {TABLE_BYTES_MAX} bytes: that is no table of prices")
    found = load_plain(name, text)
    if not isinstance(found, Mapping):
        raise SpecError(f"{name}: expected a table with currency and prices; see the docs on cost")
    try:
        return PriceTable.model_validate(found)
    except ValidationError as error:
        first = problems_from_validation(error, PriceTable)[0]
        fix = f": {first.fix}" if first.reason == "UnknownField" else ""
        raise SpecError(f"{name}: {first.field or 'prices'}: {first.message}{fix}") from error


def read_table(path: Path) -> PriceTable:
    """As ``load_table``, from a file; no more of it is read than a table may have."""
    try:
        with path.open("rb") as file:
            content = file.read(TABLE_BYTES_MAX + 1)
        return load_table(str(path), content.decode())
    except OSError as error:
        raise SpecError(f"--prices {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8: {error}") from error
