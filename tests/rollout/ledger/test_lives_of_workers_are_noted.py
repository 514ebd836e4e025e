"""When which process lived is in the ledger: lengthened by what is heard, never made up where a clock leaps or nobody listened."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_kit import IDENTITY, Clock

from rollout.errors import LedgerError
from rollout.ledger.records import LifeNote, Limits
from rollout.ledger.sql.lives import GAP_MS, read_lives
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader

PLACE = {"machine": "here"}


def life(worker="actor-0", incarnation=1, ago=0.0):
    return LifeNote(
        worker=worker, incarnation=incarnation, role="actor", place=PLACE, ago_seconds=ago
    )


def lived(reader):
    with reader as opened, opened.snapshot() as tx:
        return [
            (one.worker, one.incarnation, one.heard_ms - one.began_ms)
            for one in read_lives(tx, opened.have)
        ]


async def test_a_life_goes_from_the_first_note_to_the_last(tmp_path, open_ledger, read_ledger):
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, Limits())
    await ledger.note_lives([life(), life("actor-1")])
    clock.now += 60.0
    await ledger.note_lives([life(ago=1.5), life("actor-0", 2)])
    await ledger.note_lives([life(ago=1.5)])
    told = await ledger.lives()
    await ledger.close()

    assert [one.place for one in told] == [PLACE] * 3
    assert sorted((one.worker, one.incarnation, one.heard_ms - one.began_ms) for one in told) == [
        *sorted(lived(read_ledger(tmp_path)))
    ]
    assert sorted(lived(read_ledger(tmp_path))) == [
        ("actor-0", 1, 58_500),
        ("actor-0", 2, 0),
        ("actor-1", 1, 0),
    ]


async def test_time_that_nobody_saw_is_not_counted(tmp_path, open_ledger, read_ledger):
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, Limits())
    await ledger.note_lives([life()])
    clock.now += GAP_MS / 1000
    await ledger.note_lives([life()])
    clock.now += GAP_MS / 1000 + 1
    await ledger.note_lives([life()])
    clock.now += 2.0
    await ledger.note_lives([life()])
    await ledger.close()

    assert lived(read_ledger(tmp_path)) == [("actor-0", 1, GAP_MS), ("actor-0", 1, 2000)]


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    turns=st.lists(
        st.tuples(st.floats(0.0, 120.0), st.sampled_from([0.0, 0.0, 1e9, -1e9, 5e4, -5e4])),
        min_size=1,
        max_size=12,
    )
)
async def test_a_clock_that_leaps_adds_no_more_than_the_bound(tmp_path_factory, turns):
    path, clock = tmp_path_factory.mktemp("book") / "ledger.db", Clock()
    clock.now = 4e9
    ledger = SqliteLedger(path, IDENTITY, Limits(), clock)
    leaps = 0
    for seconds, leap in turns:
        await ledger.note_lives([life()])
        clock.now += seconds + leap
        leaps += leap != 0.0
    await ledger.note_lives([life()])
    await ledger.close()

    true_ms = sum(seconds for seconds, _ in turns) * 1000
    counted = sum(ms for _, _, ms in lived(LedgerReader(path)))
    assert counted <= true_ms + leaps * GAP_MS + len(turns)


async def test_a_clock_that_was_set_back_adds_no_row_with_each_note(
    tmp_path, open_ledger, read_ledger
):
    clock = Clock()
    clock.now = 1e9
    ledger = open_ledger(tmp_path, clock, Limits())
    await ledger.note_lives([life()])
    clock.now = 5e8
    for _ in range(5):
        await ledger.note_lives([life()])
        clock.now += 60.0
    await ledger.close()

    assert lived(read_ledger(tmp_path)) == [("actor-0", 1, 240_000), ("actor-0", 1, 0)]


async def test_a_place_that_is_no_document_is_named(tmp_path, open_ledger, read_ledger, damage):
    ledger = open_ledger(tmp_path, Clock(), Limits())
    await ledger.note_lives([life()])
    await ledger.close()
    damage("UPDATE lives SET place = 'x'")

    with pytest.raises(LedgerError, match=r"lives\.place"):
        lived(read_ledger(tmp_path))
