"""Routing by own counters: sticky until saturated, one tenant's prefixes apart from another's, in bounded memory."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules import routing
from rollout.inference.gateway.rules.placing import Seeker, find_place
from rollout.inference.gateway.rules.routing import BLOCK_BYTES, EngineLoad, chain_blocks

SESSION = b"s"
LONG = bytes(range(256)) * 8


def engines(num=4, slots=8):
    return [EngineLoad(name=str(i), slots=slots) for i in range(num)]


def choose(pool, blocks, session=SESSION, tokens=512):
    place = find_place(pool, Seeker(prompt_tokens=tokens, blocks=blocks, session=session), 0.0)
    return None if place is None else place.engine


def test_the_same_prompt_goes_where_it_was_computed():
    pool, blocks = engines(), chain_blocks(LONG, "t")
    first = choose(pool, blocks)
    first.answered(first.begin(blocks, 500), 0.1)
    first.requests = 0
    assert all(choose(pool, blocks) is first for _ in range(20))


def test_another_engine_takes_it_when_it_would_begin_much_sooner():
    pool, blocks = engines(), chain_blocks(LONG, "t")
    first = choose(pool, blocks)
    first.begin(blocks, 0)
    first.unanswered_tokens = int(first.rate * 10)
    assert choose(pool, blocks) is not first


@given(st.binary(max_size=8), st.integers(2, 6))
def test_a_conversation_too_short_for_a_block_comes_back_to_its_engine(session, num):
    pool = engines(num)
    first = choose(pool, (), session)
    assert choose(pool, (), session) is first
    others = [one for one in pool if one is not first]
    gone = others[0]
    assert choose([one for one in pool if one is not gone], (), session) is first


def test_another_tenants_equal_prompt_matches_nothing():
    pool = engines(2)
    pool[0].begin(chain_blocks(LONG, "a"), 0)
    assert pool[0].count_matched(chain_blocks(LONG, "b")) == 0
    assert pool[0].count_matched(chain_blocks(LONG, "a")) == 8


@given(st.text(max_size=20), st.text(max_size=20), st.binary(max_size=2048))
def test_no_tenant_can_make_a_block_of_anothers_chain(ours, theirs, lead):
    whole = ours.encode() + lead
    mixed = set(chain_blocks(lead, ours)) & set(chain_blocks(whole[len(theirs.encode()) :], theirs))
    assert not mixed or ours == theirs


def test_a_changed_beginning_changes_every_block_behind_it():
    changed = b"x" + LONG[1:]
    assert not set(chain_blocks(LONG, "t")) & set(chain_blocks(changed, "t"))


def test_without_common_prefixes_the_least_busy_is_taken_evenly():
    pool = engines(4, slots=1000)
    for place in range(400):
        blocks = chain_blocks(bytes([place % 256]) * BLOCK_BYTES * 2 + str(place).encode(), "t")
        choose(pool, blocks).begin(blocks, 100)
    assert {one.requests for one in pool} == {100}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=6))
def test_only_an_engine_with_room_is_chosen(states):
    pool = [
        EngineLoad(name=str(i), slots=2, ready=ready, requests=open_)
        for i, (ready, open_) in enumerate(states)
    ]
    chosen = choose(pool, chain_blocks(LONG, "t"))
    assert (chosen is None) == (not any(one.has_room for one in pool))
    assert chosen is None or chosen.has_room


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("xyz"), max_size=12)), max_size=30
    )
)
def test_what_is_known_of_an_engine_is_bounded_and_found_by_halving_as_by_counting(asked):
    engine = EngineLoad(name="a", slots=1, held_max=16)
    chains = [
        chain_blocks(b"".join(one.encode() * BLOCK_BYTES for one in parts), salt)
        for salt, parts in asked
    ]
    for chain in chains:
        engine.begin(chain, 0)
        assert len(engine.index) <= 16
        assert engine.count_matched(chain) == len(chain)
        for other in chains:
            there = [block in engine.index for block in other]
            assert engine.count_matched(other) == sum(there)
            assert there == sorted(there, reverse=True)


def test_a_tenant_that_floods_the_index_is_not_a_reason_to_wait_and_steers_nobody():
    pool = engines(2, slots=10**6)
    for place in range(200):
        lead = b"".join(f"{place}/{block}".encode().ljust(BLOCK_BYTES) for block in range(1024))
        pool[0].begin(chain_blocks(lead, "hostile"), 0)
        pool[0].requests = 0
    assert len(pool[0].index) == routing.INDEX_BLOCKS_MAX
    victims = [
        chain_blocks(f"{place}".encode().ljust(BLOCK_BYTES), "victim") for place in range(64)
    ]
    for place, blocks in enumerate(victims):
        chosen = choose(pool, blocks, str(place).encode(), 64)
        chosen.begin(blocks, 64)
    assert {one.requests for one in pool} == {32}


def answer(engine, blocks, held, rate=0.1):
    """An engine that keeps ``held`` blocks, the longest unused dropped, answers a prompt and tells what it had."""
    sent = engine.begin(blocks, 0)
    had = next((place for place, one in enumerate(blocks) if one not in held), len(blocks))
    for block in reversed(blocks):
        held.pop(block, None)
        held[block] = None
    engine.answered(sent, rate)
    engine.told(sent, had / len(blocks))
    engine.requests = 0


def texts_of(num, blocks=8):
    return [
        chain_blocks(
            b"".join(f"{one}/{at}".encode().ljust(BLOCK_BYTES) for at in range(blocks)), "t"
        )
        for one in range(num)
    ]


@pytest.mark.parametrize("room", [512, 1024])
def test_what_an_engine_has_dropped_is_learned_from_its_answers(room):
    engine, held = EngineLoad(name="a", slots=1), {}
    draw = random.Random(room)
    conversations = texts_of(400)
    for _ in range(4000):
        answer(engine, draw.choice(conversations), held)
        while len(held) > room:
            held.pop(next(iter(held)))
    assert 0.6 * room < engine.held_max < 1.6 * room
    assert len(engine.index) <= engine.held_max
    answer(engine, conversations[0], held)
    assert engine.count_matched(conversations[0]) == 8, "what was just computed is known"


def test_an_engine_that_tells_nothing_or_has_all_is_taken_to_hold_all():
    [blocks] = texts_of(1)
    silent, whole = EngineLoad(name="a", slots=1), EngineLoad(name="b", slots=1)
    for _ in range(50):
        silent.told(silent.begin(blocks, 0), 0.0)
        answer(whole, blocks, dict.fromkeys(blocks))
    assert silent.held_max == whole.held_max == routing.INDEX_BLOCKS_MAX


def test_samples_of_a_prompt_that_is_being_computed_take_nothing_for_dropped():
    engine = EngineLoad(name="a", slots=8, tells=True)
    [blocks] = texts_of(1, 600)
    group = [engine.begin(blocks, 0) for _ in range(8)]
    for one in group:
        engine.answered(one, 0.1)
        engine.told(one, 0.0)
    assert engine.held_max == routing.INDEX_BLOCKS_MAX
    late = engine.begin(blocks, 0)
    engine.answered(late, 0.1)
    engine.told(late, 0.0)
    assert engine.held_max < 600


def test_an_engine_is_never_taken_to_hold_next_to_nothing():
    engine, draw = EngineLoad(name="a", slots=1, tells=True), random.Random(1)
    conversations = texts_of(400)
    for _ in range(4000):
        answer(engine, draw.choice(conversations), {})
    assert engine.held_max == routing.HELD_BLOCKS_MIN
