"""What runs cost: nothing is lost at the end of a month, nothing is paid twice, and what has no price is named."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import pairwise

import pytest
from cost_kit import HOUR, JANUARY, POD, spans, stay, table, used
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.costs.billing import bill, sum_up, total_of
from rollout.costs.telling import cost_of, describe, money, round_to
from rollout.costs.usage import cut, merge, months_in

WORKERS = st.sampled_from(["actor-0", "actor-1", "learner"])
MANY = st.lists(st.tuples(spans(), WORKERS), max_size=8)


def covered(found):
    return sum(end - begin for begin, end in merge(found))


@settings(max_examples=40)
@given(MANY, st.sampled_from(["run", "team", "month"]))
def test_parts_and_whole_are_equal_however_they_are_summed(lives, by):
    runs = [
        used(
            *(stay(*span, worker=worker) for span, worker in part),
            run=f"r{n}",
            namespace=f"n{n % 2}",
        )
        for n, part in enumerate((lives[::2], lives[1::2]))
    ]
    charges = bill(runs, table())
    whole = total_of("total", charges)

    assert sum((one.cost or 0) for one in sum_up(charges, by)) == (whole.cost or 0)
    assert whole.unpriced == {}


@settings(max_examples=40)
@given(MANY)
def test_a_worker_that_was_restarted_is_paid_once(lives):
    charges = bill([used(*(stay(*span, worker=worker) for span, worker in lives))], table())
    hours = sum(one.hours for one in charges if one.what == "cpu")

    by_worker = {worker: [] for _, worker in lives}
    for span, worker in lives:
        by_worker[worker].append(span)
    assert hours * HOUR == sum(map(covered, by_worker.values()))


@settings(max_examples=40)
@given(st.lists(st.lists(spans(), max_size=4), max_size=4))
def test_a_machine_is_paid_once_by_all_who_share_it(runs):
    usages = [
        used(
            *(stay(*span, worker=f"w{k}", machine="desk") for k, span in enumerate(part)),
            run=f"r{n}",
        )
        for n, part in enumerate(runs)
    ]
    charges = bill(usages, table())

    assert sum(one.hours for one in charges) * HOUR == covered(
        [span for part in runs for span in part]
    )
    alone = bill([used(*(one for usage in usages for one in usage.stays))], table())
    assert total_of("", charges).cost == total_of("", alone).cost


@given(spans(), st.lists(st.integers(JANUARY, JANUARY + 100 * 24 * HOUR), max_size=6))
def test_a_span_is_cut_without_losing_a_millisecond(span, points):
    pieces = list(cut(span, [*points, *months_in(span)]))

    assert sum(end - begin for begin, end in pieces) == span[1] - span[0]
    assert all(before[1] == after[0] for before, after in pairwise(pieces))


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Europe/Berlin"])
def test_months_are_of_utc_wherever_the_machine_stands(monkeypatch, zone):
    usage = used(stay(JANUARY - HOUR, JANUARY + 100 * 24 * HOUR, machine="desk"))
    here = bill([usage], table())
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        there = bill([usage], table())
    finally:
        monkeypatch.undo()
        time.tzset()

    assert there == here
    assert [one.key for one in sum_up(there, "month")] == [
        "2025-12", "2026-01", "2026-02", "2026-03", "2026-04",
    ]  # fmt: skip


def test_each_moment_is_paid_at_the_price_that_held_then():
    february_14 = JANUARY + (31 + 13) * 24 * HOUR
    usage = used(stay(february_14 - HOUR, february_14 + 2 * HOUR, machine="desk"))

    [total] = sum_up(bill([usage], table()), "month")
    assert total.cost == Fraction("0.35") + 2 * Fraction("0.41")


def test_what_a_pod_asks_for_is_paid_by_resource_and_for_each_of_its_pods():
    usage = used(stay(JANUARY, JANUARY + HOUR, **{**POD, "pods": 2}))

    whole = total_of("", bill([usage], table()))
    assert whole.cost == 2 * (4 * Fraction("0.033") + 8 * Fraction("0.0041") + Fraction("2.10"))


def test_what_has_no_price_is_named_and_never_free():
    place = {"requests": [{"cpu": "4", "vpc.amazonaws.com/efa": "1"}], "capacity": "Spot"}
    usage = used(stay(JANUARY - HOUR, JANUARY + HOUR, **place))

    whole = total_of("", bill([usage], table()))
    assert whole.cost == 4 * Fraction("0.033")
    assert whole.unpriced == {
        "cpu (Spot) before 2026-01-01": 1,
        "vpc.amazonaws.com/efa (Spot)": 2,
    }
    assert sum_up(bill([usage], None), "run")[0].cost is None


NODES = """
currency: USD
prices:
  - {instanceType: p5, from: 2026-01-01, perHour: "80", holds: {nvidia.com/gpu: "8", cpu: "192"}}
  - {instanceType: p5, capacity: Spot, from: 2026-01-01, perHour: "30", holds: {nvidia.com/gpu: "8"}}
  - {instanceType: m7, from: 2026-01-01, perHour: "4"}
"""


@pytest.mark.parametrize(
    ("place", "cost"),
    [
        ({"instanceType": "p5", "requests": [{"nvidia.com/gpu": "2", "cpu": "96"}]}, 40),
        ({"instanceType": "p5", "capacity": "OnDemand", "requests": [{"nvidia.com/gpu": "2"}]}, 20),
        ({"instanceType": "p5", "capacity": "Spot", "requests": [{"nvidia.com/gpu": "4"}]}, 15),
        ({"instanceType": "p5", "requests": [{"nvidia.com/gpu": "80"}]}, 80),
        ({"instanceType": "m7", "requests": [{"cpu": "1"}], "pods": 3}, 12),
    ],
)
def test_a_pod_pays_for_its_largest_share_of_its_node(place, cost):
    usage = used(stay(JANUARY, JANUARY + HOUR, **place))
    assert total_of("", bill([usage], table(NODES))).cost == cost


def test_one_run_is_told_with_what_a_thousand_samples_cost():
    usage = used(
        stay(JANUARY, JANUARY + 10 * HOUR, machine="desk"),
        samples=4000,
        tokens=1_000_000,
        waited=0.25,
    )
    line = describe(cost_of([usage], "r", table()), "EUR")

    assert line == (
        "3.50 EUR; 0.875000 EUR per 1,000 samples; 0.003500 EUR per 1,000 tokens; the learner waited 25.0%"
    )


def test_a_run_that_nobody_noted_is_unknown_not_free():
    old = used(run="old").__class__(run="old", uid="old", stays=None, why="too old")
    assert describe(cost_of([old], "old", table()), "EUR") == "unknown: too old"


@given(st.fractions(0, 10**9), st.integers(0, 6))
def test_what_is_printed_is_within_half_a_digit_and_nothing_looks_free(value, digits):
    shown = Fraction(round_to(value, digits))
    assert abs(shown - value) <= Fraction(1, 2 * 10**digits)
    assert (money(value, "EUR", digits) == money(Fraction(0), "EUR", digits)) == (value == 0)
