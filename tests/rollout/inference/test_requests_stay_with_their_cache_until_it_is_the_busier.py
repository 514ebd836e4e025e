"""Routing by own counters: sticky until saturated, one tenant's prefixes apart from another's."""

from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.routing import (
    BLOCK_BYTES,
    EngineLoad,
    chain_blocks,
    choose_engine,
)

SESSION = b"s"
LONG = bytes(range(256)) * 8


def engines(num=4, slots=8):
    return [EngineLoad(name=str(i), slots=slots) for i in range(num)]


def test_the_same_prompt_goes_where_it_was_computed():
    pool, blocks = engines(), chain_blocks(LONG, "t")
    first = choose_engine(pool, blocks, SESSION)
    first.begin(blocks, 500)
    first.answered(500, 0.1)
    first.requests = 0
    assert all(choose_engine(pool, blocks, SESSION) is first for _ in range(20))


def test_another_engine_takes_it_when_it_would_begin_much_sooner():
    pool, blocks = engines(), chain_blocks(LONG, "t")
    first = choose_engine(pool, blocks, SESSION)
    first.begin(blocks, 0)
    first.unanswered_tokens = int(first.rate * 10)
    assert choose_engine(pool, blocks, SESSION) is not first


@given(st.binary(max_size=8), st.integers(2, 6))
def test_a_conversation_too_short_for_a_block_comes_back_to_its_engine(session, num):
    pool = engines(num)
    first = choose_engine(pool, (), session)
    assert choose_engine(pool, (), session) is first
    others = [one for one in pool if one is not first]
    gone = others[0]
    assert choose_engine([one for one in pool if one is not gone], (), session) is first


def test_another_tenants_equal_prompt_matches_nothing():
    pool = engines(2)
    pool[0].begin(chain_blocks(LONG, "a"), 0)
    assert pool[0].matched(chain_blocks(LONG, "b")) == 0.0
    assert pool[0].matched(chain_blocks(LONG, "a")) == 1.0


def test_a_changed_beginning_changes_every_block_behind_it():
    changed = b"x" + LONG[1:]
    assert not set(chain_blocks(LONG, "t")) & set(chain_blocks(changed, "t"))


def test_without_common_prefixes_the_least_busy_is_taken_evenly():
    pool = engines(4, slots=1000)
    for place in range(400):
        blocks = chain_blocks(bytes([place % 256]) * BLOCK_BYTES * 2 + str(place).encode(), "t")
        choose_engine(pool, blocks, SESSION).begin(blocks, 100)
    assert {one.requests for one in pool} == {100}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=6))
def test_only_an_engine_with_room_is_chosen(states):
    pool = [
        EngineLoad(name=str(i), slots=2, ready=ready, requests=open_)
        for i, (ready, open_) in enumerate(states)
    ]
    chosen = choose_engine(pool, chain_blocks(LONG, "t"), SESSION)
    assert (chosen is None) == (not any(one.has_room for one in pool))
    assert chosen is None or chosen.has_room
