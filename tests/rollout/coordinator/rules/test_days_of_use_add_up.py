"""Lives become days of use: no millisecond is lost at midnight or counted twice, and quantities stay what they were."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.rules.usage import DAY_MS, DAYS_MAX, add_requests, split_days, sum_days
from rollout.ledger.views import LifeView

BEGIN = 1_767_225_600_000
MOMENTS = st.integers(BEGIN, BEGIN + 40 * DAY_MS)
SPANS = st.tuples(MOMENTS, MOMENTS).map(sorted)
POD = {"pods": 2, "requests": [{"cpu": "4"}], "capacity": "Spot"}


def life(span, worker="actor-0", role="actor", **place):
    return LifeView(
        worker=worker,
        incarnation=1,
        role=role,
        began_ms=span[0],
        heard_ms=span[1],
        place=place or POD,
    )


@given(SPANS)
def test_days_are_the_whole_span(span):
    pieces = list(split_days(*span))
    assert sum(ms for _, ms in pieces) == span[1] - span[0]
    assert all(0 < ms <= DAY_MS for _, ms in pieces)
    assert [day for day, _ in pieces] == sorted({day for day, _ in pieces})


@given(st.lists(st.tuples(SPANS, st.sampled_from(["actor-0", "actor-1"])), max_size=8))
def test_a_worker_is_counted_once_however_its_lives_overlap(lives):
    told = sum_days([life(span, worker) for span, worker in lives])

    moments = defaultdict(list)
    for span, worker in lives:
        moments[worker].append(span)
    union = 0
    for spans in moments.values():
        reached = 0
        for begin, end in sorted(spans):
            union += max(0, end - max(begin, reached))
            reached = max(reached, end)
    assert sum(one.milliseconds for one in told) == union


def test_roles_and_shapes_stand_apart_and_machines_are_none():
    hour = (BEGIN, BEGIN + 3_600_000)
    told = sum_days(
        [
            life(hour),
            life(hour, "learner", "learner"),
            life(hour, "actor-1", requests=[{"cpu": "4"}]),
            life(hour, "actor-2", machine="desk"),
        ]
    )
    assert [(one.day, one.role, one.pods, one.capacity) for one in told] == [
        ("2026-01-01", "Actor", 2, "Spot"),
        ("2026-01-01", "Actor", 1, None),
        ("2026-01-01", "Learner", 2, "Spot"),
    ]


def test_a_status_holds_the_newest_days():
    told = sum_days([life((BEGIN, BEGIN + (DAYS_MAX + 5) * DAY_MS))])
    assert (len(told), told[0].day) == (DAYS_MAX, "2026-01-06")


@pytest.mark.parametrize(
    ("containers", "together"),
    [
        (
            [{"cpu": "4", "memory": "8Gi"}, {"cpu": "100m", "memory": "256Mi"}],
            ("4100m", "8858370048"),
        ),
        ([{"cpu": "2.5", "memory": "1G"}], ("2500m", "1000000000")),
    ],
)
def test_containers_are_added(containers, together):
    assert add_requests(containers) == {"cpu": together[0], "memory": together[1]}
