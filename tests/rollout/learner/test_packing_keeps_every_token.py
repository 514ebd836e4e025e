"""Packing and plans by length: nothing lost, nothing twice, no bound passed without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout.learner.objectives.packing import Chunk, pack_rows, share_among_ranks, split_group

LENGTHS = st.lists(st.integers(1, 40), max_size=60)
BOUNDS = st.integers(1, 90)


def flatten(parts) -> list[int]:
    return sorted(position for part in parts for position in part)


def test_the_fullest_row_that_fits_is_taken() -> None:
    # 6, 5, 4, 3, 2 into 10: [6, 4] then [5, 3, 2]; in the order given it would need three rows
    assert pack_rows([2, 5, 4, 3, 6], 10) == ((2, 4), (0, 1, 3))


@given(LENGTHS, BOUNDS)
def test_rows_hold_every_item_once_and_overflow_only_alone(lengths, bound) -> None:
    rows = pack_rows(lengths, bound)
    assert flatten(rows) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= bound or len(row) == 1 for row in rows)


@given(LENGTHS, BOUNDS)
def test_at_most_one_row_is_half_empty(lengths, bound) -> None:
    fills = [sum(lengths[i] for i in row) for row in pack_rows(lengths, bound)]
    assert sum(2 * fill <= bound for fill in fills) <= 1


@given(st.integers(0, 30), st.lists(st.integers(1, 40), max_size=12), st.integers(1, 150))
def test_a_group_is_cut_only_when_it_must_be(prompt, completions, bound) -> None:
    chunks = split_group(7, prompt, completions, bound)
    assert flatten(chunk.samples for chunk in chunks) == list(range(len(completions)))
    if completions and prompt + sum(completions) <= bound:
        assert chunks == (Chunk(group=7, samples=tuple(range(len(completions)))),)
    for chunk in chunks:
        used = prompt + sum(completions[i] for i in chunk.samples)
        assert used <= bound or len(chunk.samples) == 1


@given(LENGTHS, st.integers(1, 5))
def test_ranks_share_everything_within_one_item_of_balance(lengths, ranks) -> None:
    shares = share_among_ranks(lengths, ranks)
    assert len(shares) == ranks
    assert flatten(shares) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
