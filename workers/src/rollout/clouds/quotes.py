"""Prices as clouds' own catalogues say them, read from answers that nobody has looked at: pure.

What has two prices, none, or another unit than expected is refused by name; nothing is guessed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Annotated, Literal, TypeVar

import msgspec

from rollout.costs.prices import PriceTable, load_table
from rollout.errors import SpecError

HOURS = frozenset({"Hrs", "Hours"})
NO_NVIDIA = ("g4ad.",)
"""Families whose devices Amazon counts as ``gpu``, too, and that are not Nvidia's."""
GOOGLE_UNITS = {"cpu": "h", "memory": "GiBy.h", "nvidia.com/gpu": "h"}
NANO = Decimal("1e-9")
T = TypeVar("T")
Text = Annotated[str, msgspec.Meta(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What one thing costs an hour. ``holds`` is of nodes: what one of the type has."""

    kind: Literal["instanceType", "resource"]
    name: str
    per_hour: str
    capacity: Literal["Spot"] | None = None
    holds: Mapping[str, str] = field(default_factory=dict)


class _Dimension(msgspec.Struct, rename="camel"):
    unit: Text
    price_per_unit: dict[str, Text]


class _Term(msgspec.Struct, rename="camel"):
    price_dimensions: dict[str, _Dimension]


class _Terms(msgspec.Struct):
    OnDemand: dict[str, _Term] = {}


class _Attributes(msgspec.Struct, rename="camel"):
    instance_type: Text = ""
    vcpu: Text = ""
    memory: Text = ""
    gpu: Text = "0"


class _Product(msgspec.Struct):
    attributes: _Attributes


class _Listed(msgspec.Struct):
    product: _Product
    terms: _Terms


def read_products(documents: Iterable[str], instance_type: str, currency: str) -> Quote:
    """Amazon's on-demand price of a type, of its price list's documents. Raises SpecError."""
    listed = [_decode(one, _Listed, "the AWS price list") for one in documents]
    found = {
        (_per_hour(dimension, instance_type, currency), tuple(_holds(one.product.attributes)))
        for one in listed
        if one.product.attributes.instance_type == instance_type
        for term in one.terms.OnDemand.values()
        for dimension in term.price_dimensions.values()
    }
    if len(found) != 1:
        told = "no price" if not found else f"{len(found)} prices"
        raise SpecError(
            f"{instance_type}: the AWS price list has {told} for it there (Linux, shared tenancy, on demand); see whether the region has the type"
        )
    [(per_hour, holds)] = found
    return Quote(kind="instanceType", name=instance_type, per_hour=per_hour, holds=dict(holds))


def read_spot(prices: Iterable[tuple[str, str]], instance_type: str) -> Quote:
    """The dearest zone's newest price; ``prices`` are zones with prices, newest first. Raises SpecError."""
    newest: dict[str, Decimal] = {}
    for zone, price in prices:
        newest.setdefault(zone, _decimal(price, instance_type))
    if not newest:
        raise SpecError(f"{instance_type}: EC2 has no Spot price for it there; leave --spot out")
    per_hour = _plain(max(newest.values()))
    return Quote(kind="instanceType", name=instance_type, per_hour=per_hour, capacity="Spot")


class _Money(msgspec.Struct, rename="camel"):
    currency_code: Text
    units: Text = "0"
    nanos: int = 0


class _Rate(msgspec.Struct, rename="camel"):
    unit_price: _Money


class _Expression(msgspec.Struct, rename="camel"):
    usage_unit: Text
    tiered_rates: list[_Rate] = []


class _Pricing(msgspec.Struct, rename="camel"):
    pricing_expression: _Expression


class _Category(msgspec.Struct, rename="camel"):
    usage_type: Text = ""


class _Sku(msgspec.Struct, rename="camel"):
    description: Text
    category: _Category
    service_regions: list[Text] = []
    pricing_info: list[_Pricing] = []


class SkuPage(msgspec.Struct, rename="camel"):
    """One page of Google's catalogue."""

    skus: list[_Sku] = []
    next_page_token: Text = ""


def read_page(data: bytes) -> SkuPage:
    """A page. Raises SpecError."""
    return _decode(data, SkuPage, "Google's billing catalogue")


def read_skus(
    skus: Iterable[_Sku], region: str, family: str, gpu: str | None, currency: str, *, spot: bool
) -> tuple[Quote, ...]:
    """A core, a GiB and, where it is named, a device of a family there. Raises SpecError."""
    wanted = {"cpu": f"{family} Instance Core", "memory": f"{family} Instance Ram"}
    if gpu is not None:
        wanted["nvidia.com/gpu"] = f"{gpu} GPU"
    here = [one for one in skus if region in one.service_regions]
    kinds: tuple[Literal["Spot"] | None, ...] = (None, "Spot") if spot else (None,)
    return tuple(
        _quote_sku(here, resource, f"{words} running in", capacity, currency)
        for capacity in kinds
        for resource, words in wanted.items()
    )


def _quote_sku(
    skus: Iterable[_Sku],
    resource: str,
    words: str,
    capacity: Literal["Spot"] | None,
    currency: str,
) -> Quote:
    usage = "Preemptible" if capacity else "OnDemand"
    begins = f"Spot Preemptible {words}" if capacity else words
    found = {
        _sku_price(one, resource, currency)
        for one in skus
        if one.category.usage_type == usage and one.description.startswith(begins)
    }
    if len(found) != 1:
        told = "no price" if not found else f"{len(found)} prices"
        raise SpecError(
            f"{begins!r}: Google's billing catalogue has {told} for it in that region; write --family and --gpu as the"
            " catalogue does (N2, 'Nvidia Tesla A100 80GB')"
        )
    return Quote(kind="resource", name=resource, per_hour=found.pop(), capacity=capacity)


def _sku_price(sku: _Sku, resource: str, currency: str) -> str:
    if not sku.pricing_info:
        raise SpecError(f"{sku.description}: Google's billing catalogue has no price for it")
    expression = sku.pricing_info[-1].pricing_expression
    if expression.usage_unit != GOOGLE_UNITS[resource] or len(expression.tiered_rates) != 1:
        raise SpecError(
            f"{sku.description}: its price is by {expression.usage_unit} in {len(expression.tiered_rates)} tiers, expected"
            f" one by {GOOGLE_UNITS[resource]}: write it into the table yourself"
        )
    money = expression.tiered_rates[0].unit_price
    if money.currency_code != currency:
        raise SpecError(f"{sku.description}: priced in {money.currency_code}, expected {currency}")
    return _plain(_decimal(money.units, sku.description) + money.nanos * NANO)


def _per_hour(dimension: _Dimension, instance_type: str, currency: str) -> str:
    if dimension.unit not in HOURS:
        raise SpecError(f"{instance_type}: priced by {dimension.unit}, expected by the hour")
    if currency not in dimension.price_per_unit:
        there = ", ".join(sorted(dimension.price_per_unit)) or "none"
        raise SpecError(f"{instance_type}: no price in {currency}; the AWS price list has {there}")
    return _plain(_decimal(dimension.price_per_unit[currency], instance_type))


def _holds(attributes: _Attributes) -> Iterator[tuple[str, str]]:
    if attributes.vcpu.isdigit():
        yield "cpu", attributes.vcpu
    if found := re.fullmatch(r"([\d,.]+) GiB", attributes.memory):
        yield "memory", f"{found[1].replace(',', '')}Gi"
    is_nvidia = not attributes.instance_type.startswith(NO_NVIDIA)
    if attributes.gpu.isdigit() and int(attributes.gpu) and is_nvidia:
        yield "nvidia.com/gpu", attributes.gpu


def _decimal(text: str, what: str) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise SpecError(f"{what}: {text!r:.40} is no price") from None
    if not found.is_finite() or found < 0:
        raise SpecError(f"{what}: {text!r:.40} is no price")
    return found


def _plain(amount: Decimal) -> str:
    text = f"{amount:.12f}".rstrip("0").rstrip(".")
    return text or "0"


def _decode(data: str | bytes, kind: type[T], whose: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{whose}: an answer that is none ({error})"[:300]) from error


def render_quotes(quotes: Iterable[Quote], since: date, source: str) -> str:
    """Lines of a table of prices, with where they are from."""
    lines = [f"# {' '.join(source.split())}", *(_render(one, since) for one in quotes)]
    return "\n".join(lines) + "\n"


def _render(quote: Quote, since: date) -> str:
    parts = [f"{quote.kind}: {quote.name}"]
    parts += [f"capacity: {quote.capacity}"] if quote.capacity else []
    parts += [f"from: {since.isoformat()}", f'perHour: "{quote.per_hour}"']
    if quote.holds:
        held = ", ".join(f'{name}: "{amount}"' for name, amount in quote.holds.items())
        parts.append(f"holds: {{{held}}}")
    return f"- {{{', '.join(parts)}}}"


def changed(table: PriceTable, quotes: Iterable[Quote]) -> tuple[Quote, ...]:
    """Those that the table does not say already with its newest price."""
    return tuple(one for one in quotes if not _is_said(table, one))


def _is_said(table: PriceTable, quote: Quote) -> bool:
    kind = "instance_type" if quote.kind == "instanceType" else "resource"
    same = [one for one in table.prices if one.key == (kind, quote.name, quote.capacity)]
    if not same:
        return False
    newest = max(same, key=lambda one: one.since)
    is_equal = Decimal(newest.per_hour) == Decimal(quote.per_hour)
    return is_equal and dict(newest.holds) == dict(quote.holds)


def add_quotes(name: str, text: str, currency: str, lines: str, number: int) -> str:
    """The text of a table with ``number`` lines more, all that stood in it as it was. Raises SpecError."""
    if not text.strip():
        text = f"currency: {currency}\nprices:\n"
    else:
        before = load_table(name, text)
        if before.currency != currency:
            raise SpecError(
                f"{name}: it is in {before.currency}, and these prices are in {currency}: take another file"
            )
        number += len(before.prices)
    indents = re.findall(r"^( *)- ", text, re.MULTILINE)
    whole = f"{text.rstrip()}\n{textwrap.indent(lines, indents[-1] if indents else '')}"
    try:
        after = load_table(name, whole)
    except SpecError as error:
        fix = (
            "prices has to be its last key; or print the lines with --to - and put them in by hand"
        )
        raise SpecError(f"{error} (with the new lines: {fix})") from error
    assert len(after.prices) == number
    return whole
