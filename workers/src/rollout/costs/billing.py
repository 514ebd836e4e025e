"""Usage times prices: exact sums, and by name what has no price. Pure.

A worker of one name stands on one place at a time, however often it was restarted: its spans are laid over each other
before anything is paid. A machine is paid once: runs that share it at a moment share its price of that moment evenly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rollout.common.quantities import exact_quantity
from rollout.costs.prices import ANY_MACHINE, GIBI, PER_GIB, Capacity, Price, PriceTable
from rollout.costs.usage import DAY_MS, Lifetime, RunUsage, Span, cut, merge, month_of, months_in
from rollout.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class LineItem:
    """What ``hours`` of something cost in one month. ``cost`` None: it has no price, and ``what`` names it."""

    run: str
    team: str
    month: str
    role: str
    what: str
    hours: Fraction
    cost: Fraction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """A piece of time of one worker; ``share`` of it is the run's."""

    usage: RunUsage
    role: str
    span: Span
    share: Fraction
    place: Mapping[str, Any]


def bill(usages: Sequence[RunUsage], table: PriceTable | None) -> tuple[LineItem, ...]:
    """Every piece of every run's time, once. Without a table nothing has a price."""
    used = (*_on_machines(usages), *_in_pods(usages), *_by_days(usages))
    return tuple(charge for one in used for charge in _charge(one, table))


def team_of(usage: RunUsage, table: PriceTable | None) -> str:
    """Who pays: the run's label that the table names, else its namespace."""
    label = None if table is None or table.team is None else table.team.label
    return usage.labels.get(label or "") or usage.namespace


def _on_machines(usages: Sequence[RunUsage]) -> Iterator[_Used]:
    machines: dict[str, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for number, usage in enumerate(usages):
        for stay in usage.stays or ():
            if "machine" in stay.place:
                machines[str(stay.place["machine"])][number].append(stay.span)
    for machine, by_run in machines.items():
        spans = {number: merge(found) for number, found in by_run.items()}
        for number, span, sharing in _shared(spans):
            yield _Used(
                usage=usages[number],
                role="machine",
                span=span,
                share=Fraction(1, sharing),
                place={"machine": machine},
            )


def _shared(spans: Mapping[int, Sequence[Span]]) -> Iterator[tuple[int, Span, int]]:
    """Pieces of each run's time, and how many runs were there: one sweep over all beginnings and ends."""
    turns = sorted(
        (at, change, number)
        for number, found in spans.items()
        for span in found
        for at, change in zip(span, (1, -1), strict=True)
    )
    there: dict[int, int] = {}
    before = 0
    for at, change, number in turns:
        if at > before:
            yield from ((one, (before, at), len(there)) for one in sorted(there))
        before = at
        if change > 0:
            there[number] = at
        else:
            there.pop(number, None)


def _in_pods(usages: Sequence[RunUsage]) -> Iterator[_Used]:
    for usage in usages:
        workers: dict[str, list[Lifetime]] = defaultdict(list)
        for stay in usage.stays or ():
            if "machine" not in stay.place:
                workers[stay.worker].append(stay)
        for stays in workers.values():
            yield from _successive(usage, stays)


def _by_days(usages: Sequence[RunUsage]) -> Iterator[_Used]:
    """A day is of one month and of one price: what several workers used in it is so many of it."""
    for usage in usages:
        for day in usage.days:
            yield _Used(
                usage=usage,
                role=day.role,
                span=(day.day_ms, day.day_ms + DAY_MS),
                share=Fraction(day.used_ms, DAY_MS),
                place=day.place,
            )


def _successive(usage: RunUsage, stays: Sequence[Lifetime]) -> Iterator[_Used]:
    """The lives of one worker after each other: where two overlap, the later one begins at the earlier one's end."""
    reached = 0
    for stay in sorted(stays, key=lambda one: one.span):
        begin = max(stay.span[0], reached)
        if begin < stay.span[1]:
            span = (begin, stay.span[1])
            yield _Used(usage=usage, role=stay.role, span=span, share=Fraction(1), place=stay.place)
        reached = max(reached, stay.span[1])


def _charge(used: _Used, table: PriceTable | None) -> Iterator[LineItem]:
    for item in _items(used.place, table):
        points = [*months_in(used.span), *(price.from_ms for price in item.series)]
        for piece in cut(used.span, points):
            price = next((one for one in reversed(item.series) if one.from_ms <= piece[0]), None)
            amount = (piece[1] - piece[0]) * used.share
            early = item.series and price is None
            yield LineItem(
                run=used.usage.run,
                team=team_of(used.usage, table),
                month=month_of(piece[0]),
                role=used.role,
                what=f"{item.what} before {item.series[0].since}" if early else item.what,
                hours=amount / 3_600_000,
                cost=None if price is None else amount * price.per_ms * item.units(price),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Something that is paid for: ``number`` of it, or where ``requests`` are told as many shares of a node."""

    what: str
    number: Fraction
    series: tuple[Price, ...] = ()
    requests: Mapping[str, Fraction] | None = None

    def units(self, price: Price) -> Fraction:
        """How many of it are paid by this price."""
        return self.number * (1 if self.requests is None else share_of(self.requests, price))


def _items(place: Mapping[str, Any], table: PriceTable | None) -> Iterator[_Item]:
    """What is to be paid for a place."""
    if "machine" in place:
        name = str(place["machine"])
        series = () if table is None else _of_machine(table, name)
        yield _Item(what=f"machine {name}", number=Fraction(1), series=series)
        return
    capacity, requests = place.get("capacity"), _amounts(place.get("requests", ()))
    pods, instance = Fraction(place.get("pods", 1)), place.get("instanceType")
    series = table.series("instance_type", instance, capacity) if table and instance else ()
    if series:
        what = _named(f"node {instance}", capacity)
        yield _Item(what=what, number=pods, series=series, requests=requests)
        return
    if not requests:
        yield _Item(what="a pod that asks for nothing, on a node of unknown type", number=pods)
    for resource, amount in requests.items():
        yield _Item(
            what=_named(resource, capacity),
            number=pods * (amount / GIBI if resource in PER_GIB else amount),
            series=() if table is None else table.series("resource", resource, capacity),
        )


def _of_machine(table: PriceTable, name: str) -> tuple[Price, ...]:
    return table.series("machine", name, None) or table.series("machine", ANY_MACHINE, None)


def _named(what: str, capacity: Capacity | None) -> str:
    return what if capacity is None else f"{what} ({capacity})"


def _amounts(containers: Sequence[Mapping[str, Any]]) -> dict[str, Fraction]:
    """What a pod asks for, by resource; what is no quantity is refused with its name."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for resource, text in sorted(one for requests in containers for one in requests.items()):
        try:
            found[resource] += exact_quantity(str(text))
        except SpecError as error:
            raise SpecError(f"a ledger's request of {resource}: {error}") from error
    return dict(found)


def share_of(requests: Mapping[str, Fraction], price: Price) -> Fraction:
    """The largest share that a pod asks for of what a node holds; the whole node where nobody says what it holds."""
    shares = [
        requests.get(resource, Fraction(0)) / exact_quantity(text)
        for resource, text in price.holds.items()
    ]
    return min(max(shares, default=Fraction(1)), Fraction(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum. ``hours`` are of machines and pods; ``unpriced`` names what is not in ``cost``, with its hours."""

    key: str
    cost: Fraction | None
    unpriced: Mapping[str, Fraction]


def sum_up(charges: Iterable[LineItem], by: str) -> tuple[Total, ...]:
    """Charges by ``run``, ``team`` or ``month``, in order. ``cost`` None: nothing of it has a price."""
    grouped: dict[str, list[LineItem]] = defaultdict(list)
    for charge in charges:
        grouped[getattr(charge, by)].append(charge)
    return tuple(total_of(key, found) for key, found in sorted(grouped.items()))


def total_of(key: str, charges: Iterable[LineItem]) -> Total:
    """One sum of all."""
    cost, unpriced = None, defaultdict[str, Fraction](Fraction)
    for charge in charges:
        if charge.cost is None:
            unpriced[charge.what] += charge.hours
        else:
            cost = (cost or Fraction(0)) + charge.cost
    return Total(key=key, cost=cost, unpriced=dict(unpriced))
