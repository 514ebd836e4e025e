"""Times of a schedule: the five standard fields of cron, read in a time zone. Pure; the standard library alone.

Fields, names and ranges are those of a CronJob: minute, hour, day of month, month, day of week. No seconds, no ``@daily``,
no ``TZ=`` in front. Where both days are restricted either is enough, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

DAYS_MAX = 8 * 366
"""How far a time is looked for: a 29 February comes back within eight years."""
FORM = "write five fields, such as '0 2 * * *' for every night at two"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One of the five: its name for people, its lowest and highest value. ``names`` count from ``low``.

    ``highest`` may be written, and ``last`` ends what has no end: Sunday is 0 and 7.
    """

    name: str
    low: int
    last: int
    highest: int
    names: tuple[str, ...] = ()


FIELDS = (
    Field(name="minute", low=0, last=59, highest=59),
    Field(name="hour", low=0, last=23, highest=23),
    Field(name="day of month", low=1, last=31, highest=31),
    Field(name="month", low=1, last=12, highest=12, names=_MONTHS),
    Field(name="day of week", low=0, last=6, highest=7, names=_WEEKDAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A schedule: the values of each field, weekdays from 0 (Sunday) to 6. ``any_day``: a field of days is ``*``."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool

    def holds_on(self, day: date) -> bool:
        """Whether it has times on that day."""
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        fits = by_day and by_weekday if self.any_day else by_day or by_weekday
        return fits and day.month in self.months


def parse_cron(text: str) -> Cron:
    """The schedule. Raises ValueError that names the field, what it has, and what it may have."""
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise ValueError(f"{text!r} has {len(parts)} fields, expected 5: {FORM}")
    minutes, hours, days, months, weekdays = (
        _parse_field(part, field) for part, field in zip(parts, FIELDS, strict=True)
    )
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(one % 7 for one in weekdays),
        any_day="*" in (parts[2], parts[4]),
    )


def _parse_field(text: str, field: Field) -> frozenset[int]:
    return frozenset(value for part in text.split(",") for value in _parse_part(part, field))


def _parse_part(part: str, field: Field) -> range:
    """``*``, ``5``, ``1-5``, ``*/15``, ``10-50/20``, ``30/10``."""
    span, slash, step = part.partition("/")
    low, dash, high = span.partition("-")
    if span == "*":
        first, last = field.low, field.last
    else:
        first = _parse_value(low, field, part)
        last = _parse_value(high, field, part) if dash else (field.last if slash else first)
    every = _parse_step(step, field, part) if slash else 1
    if first > last:
        raise ValueError(
            f"{field.name} {part!r}: {first} comes after {last}; write the lower first"
        )
    return range(first, last + 1, every)


def _parse_step(text: str, field: Field, part: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{field.name} {part!r}: expected a step of 1 or more after the slash")
    return int(text)


def _parse_value(text: str, field: Field, part: str) -> int:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.low
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else -1
    if not field.low <= value <= field.highest:
        names = f" or a name such as {field.names[0]}" if field.names else ""
        raise ValueError(
            f"{field.name} {part!r}: expected {field.low} to {field.highest}{names}, got {text!r}"
        )
    return value


def find_zone(name: str | None) -> tzinfo:
    """A time zone by its IANA name, UTC where none is given. Raises ValueError for one that this machine does not know."""
    if name is None or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"{name!r} is no time zone that is known here; write one such as Europe/Berlin, or leave it out for UTC"
        ) from error


def next_time(cron: Cron, zone: tzinfo, after: datetime) -> datetime | None:
    """The first time after that one, in UTC; None where there is none in eight years."""
    first = after.astimezone(zone).date()
    for offset in range(DAYS_MAX):
        if found := [one for one in _times_on(cron, zone, first, offset) if one > after]:
            return min(found)
    return None


def last_time(cron: Cron, zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """The newest time after the one and not after the other, in UTC; None where there is none."""
    last, days = until.astimezone(zone).date(), (until - after).days + 2
    for offset in range(min(days, DAYS_MAX)):
        found = [one for one in _times_on(cron, zone, last, -offset) if after < one <= until]
        if found:
            return max(found)
    return None


def _times_on(cron: Cron, zone: tzinfo, start: date, offset: int) -> Iterator[datetime]:
    """A day's times. One that a change of the clocks leaves out comes an hour later; of one that comes twice the first."""
    day = start + timedelta(days=offset)
    if not cron.holds_on(day):
        return
    for hour in cron.hours:
        for minute in cron.minutes:
            local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
            yield local.astimezone(UTC)
