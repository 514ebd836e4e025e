"""Five fields of cron: what they come to, in any time zone, and what is refused by its field."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_api.fields.cron import find_zone, last_time, next_time, parse_cron

BERLIN = ZoneInfo("Europe/Berlin")
THURSDAY = datetime(2026, 1, 1, 12, 7, 30, tzinfo=UTC)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-01-01T12:08"),
        ("0 2 * * *", "2026-01-02T02:00"),
        ("*/15 * * * *", "2026-01-01T12:15"),
        ("10-50/20 * * * *", "2026-01-01T12:10"),
        ("30/10 12 * * *", "2026-01-01T12:30"),
        ("0 0,13 * * *", "2026-01-01T13:00"),
        ("0 9 * * mon-fri", "2026-01-02T09:00"),
        ("0 9 * * SUN", "2026-01-04T09:00"),
        ("0 9 * * 7", "2026-01-04T09:00"),
        ("0 9 * * 5-7", "2026-01-02T09:00"),
        ("0 0 1 feb *", "2026-02-01T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 13 * 5", "2026-01-02T00:00"),
        ("0 0 13 * *", "2026-01-13T00:00"),
    ],
)
def test_the_next_time_is_the_one_by_hand(text, expected):
    assert next_time(parse_cron(text), UTC, THURSDAY) == at(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 2 * *", "has 4 fields, expected 5"),
        ("0 2 * * * UTC", "has 6 fields"),
        ("@daily", "has 1 fields"),
        ("60 * * * *", "minute '60': expected 0 to 59, got '60'"),
        ("0 24 * * *", "hour '24': expected 0 to 23"),
        ("0 0 0 * *", "day of month '0': expected 1 to 31"),
        ("0 0 * 13 *", "month '13': expected 1 to 12 or a name such as jan"),
        ("0 0 * * 8", "day of week '8': expected 0 to 7 or a name such as sun"),
        ("0 0 * * monday", "day of week 'monday'"),
        ("5-1 * * * *", "minute '5-1': 5 comes after 1"),
        ("*/0 * * * *", "minute '*/0': expected a step of 1 or more"),
        ("*/x * * * *", "minute '*/x': expected a step"),
        ("1,,2 * * * *", "minute '': expected 0 to 59"),
        ("-1 * * * *", "minute '-1'"),
        ("\u0661 * * * *", "minute"),
        ("0 0 ? * *", "day of month '?'"),
    ],
)
def test_what_is_no_schedule_is_refused_by_its_field(text, words):
    with pytest.raises(ValueError, match=r"expected|comes after|fields") as refused:
        parse_cron(text)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "Europe", "/etc/passwd", "../UTC", ""])
def test_a_zone_that_nobody_knows_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match="no time zone that is known here"):
        find_zone(name)
    assert find_zone(None) is find_zone("UTC") is UTC


def test_a_night_of_summer_and_one_of_winter_are_an_hour_apart_in_utc():
    nightly = parse_cron("0 2 * * *")
    assert next_time(nightly, BERLIN, at("2026-01-01T12:00")) == at("2026-01-02T01:00")
    assert next_time(nightly, BERLIN, at("2026-07-01T12:00")) == at("2026-07-02T00:00")


def test_a_time_that_the_clocks_leave_out_comes_an_hour_later_and_one_that_comes_twice_comes_once():
    half_past_two = parse_cron("30 2 * * *")
    assert next_time(half_past_two, BERLIN, at("2026-03-28T12:00")) == at("2026-03-29T01:30")
    first = next_time(half_past_two, BERLIN, at("2026-10-24T12:00"))
    assert first == at("2026-10-25T00:30")
    assert next_time(half_past_two, BERLIN, first) == at("2026-10-26T01:30")


def test_a_time_that_never_comes_is_none():
    assert next_time(parse_cron("0 0 31 2 *"), UTC, THURSDAY) is None
    assert last_time(parse_cron("0 0 31 2 *"), UTC, at("2020-01-01"), THURSDAY) is None


def test_of_many_times_that_were_missed_the_newest_is_told():
    hourly = parse_cron("0 * * * *")
    assert last_time(hourly, UTC, at("2025-06-01"), THURSDAY) == at("2026-01-01T12:00")
    assert last_time(hourly, UTC, at("2026-01-01T12:00"), THURSDAY) is None


@given(
    text=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 1,15 * 3", "15 */5 * 3,10 *"]),
    zone=st.sampled_from([UTC, BERLIN, ZoneInfo("America/New_York")]),
    start=st.integers(0, 6 * 366 * 24 * 60).map(
        lambda minutes: at("2024-01-01") + timedelta(minutes=minutes)
    ),
)
def test_the_last_time_before_the_next_one_lies_between(text, zone, start):
    cron = parse_cron(text)
    following = next_time(cron, zone, start)
    assert following > start
    assert last_time(cron, zone, start, following) == following
    assert last_time(cron, zone, start, following - timedelta(seconds=1)) is None
