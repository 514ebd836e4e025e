"""The order of tasks: a pure function of the ordinal, so that a resume can neither skip nor repeat."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.data.cursor import (
    DataCursor,
    DataOrder,
    cursor_at,
    place,
    take,
    total,
)
from rollout.data.permutation import permute

ORDERS = st.builds(
    DataOrder,
    length=st.integers(1, 60),
    seed=st.integers(-(2**63), 2**63 - 1),
    shuffle=st.booleans(),
    window=st.none() | st.integers(1, 20),
    epochs=st.integers(1, 3),
)


def read(order, cursor, sizes):
    """Take in chunks of the given sizes, then all the rest."""
    got = []
    for size in sizes:
        places, cursor = take(order, cursor, size)
        got += places
    rest, cursor = take(order, cursor, 10_000)
    assert cursor.exhausted
    return got + list(rest)


@settings(deadline=None)
@given(
    order=ORDERS,
    before=st.lists(st.integers(0, 30), max_size=5),
    after=st.lists(st.integers(0, 30)),
)
def test_a_resume_at_any_point_gives_the_same_tasks_in_the_same_order(order, before, after):
    whole = read(order, DataCursor(), [])

    taken, cursor = [], DataCursor()
    for size in before:
        places, cursor = take(order, cursor, size)
        taken += places
    resumed = read(
        order, DataCursor(**{k: getattr(cursor, k) for k in DataCursor.__slots__}), after
    )

    assert taken + resumed == whole
    assert [task.ordinal for task in whole] == list(range(order.length * order.epochs))


@settings(deadline=None)
@given(order=ORDERS)
def test_every_epoch_visits_every_row_once(order):
    tasks = read(order, DataCursor(), [])

    for epoch in range(order.epochs):
        positions = Counter(task.position for task in tasks if task.epoch == epoch)
        assert positions == Counter(range(order.length))


@given(order=ORDERS, ordinal=st.integers(0, 180))
def test_a_cursor_says_epoch_slot_and_end(order, ordinal):
    cursor = cursor_at(order, ordinal)

    assert cursor.epoch * order.length + cursor.position == ordinal
    assert cursor.exhausted == (ordinal >= order.length * order.epochs)


@given(order=ORDERS)
def test_an_exhausted_cursor_stays_exhausted(order):
    _, cursor = take(order, DataCursor(), 10_000)

    assert take(order, cursor, 5) == ((), cursor)


@given(size=st.integers(1, 300), key=st.integers(0, 2**63 - 1))
def test_a_permutation_hits_every_index_once(size, key):
    assert sorted(permute(i, size, key) for i in range(size)) == list(range(size))


def test_the_order_is_pinned_for_all_machines_and_versions():
    order = DataOrder(length=10, seed=0, epochs=2)

    assert [place(order, i).position for i in range(20)] == [
        *(8, 3, 9, 4, 6, 0, 7, 2, 5, 1),
        *(7, 1, 0, 3, 6, 8, 2, 5, 4, 9),
    ]


def test_seeds_and_epochs_give_different_orders():
    def order(seed, epoch):
        data = DataOrder(length=50, seed=seed)
        return [place(data, epoch * 50 + i).position for i in range(50)]

    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


def test_a_window_keeps_rows_within_their_block():
    order = DataOrder(length=25, seed=1, window=10)

    blocks = [place(order, i).position // 10 for i in range(25)]

    assert blocks == [0] * 10 + [1] * 10 + [2] * 5


def test_the_shuffle_of_a_large_epoch_has_no_visible_order():
    """Mean rank correlation of positions with slots, and of neighbours, over 20 seeds is near zero."""
    n, seeds = 500, 20
    with_slot = with_next = 0.0
    for seed in range(seeds):
        order = DataOrder(length=n, seed=seed)
        p = [place(order, i).position - (n - 1) / 2 for i in range(n)]
        variance = sum(x * x for x in p)
        with_slot += sum(x * (i - (n - 1) / 2) for i, x in enumerate(p)) / variance
        with_next += sum(x * y for x, y in pairwise(p)) / variance

    assert abs(with_slot / seeds) < 0.04
    assert abs(with_next / seeds) < 0.04


def test_without_a_bound_on_epochs_nothing_ends():
    order = DataOrder(length=3, seed=0)

    assert total(order) is None
    assert place(order, 3_000_001).epoch == 1_000_000
    assert not cursor_at(order, 10**12).exhausted


def test_an_ordinal_beyond_the_end_is_our_mistake():
    with pytest.raises(ValueError, match="outside the data's 6 tasks"):
        place(DataOrder(length=3, seed=0, epochs=2), 6)
