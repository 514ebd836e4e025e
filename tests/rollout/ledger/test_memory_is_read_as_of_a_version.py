"""What environments keep is read as it was at a step of the reader's own lineage, in one order, however much there is."""

import random

import msgspec
import pytest
from ledger_kit import Clock, admission, claim_request, finished, started, step_commit, version
from test_a_ledger_goes_back_to_a_step_of_its_own import anchor, back
from test_bodies_go_when_nothing_needs_them import ordinals

from rollout.errors import LedgerBroken, LedgerError, NoLongerKept
from rollout.ledger.records import Limits, MemoryRow
from rollout.ledger.sql.memory import rows as stored
from rollout.memory import ENTRIES_MAX, apply_writes

LATER = 10**6
AT_ONCE = 3


def row(step, key, value="1", ordinal=0, sample=0, vector=b""):
    return MemoryRow(step=step, ordinal=ordinal, sample=sample, key=key, value=value, vector=vector)


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def write(ledger, learner, actor, step, memory, lineage=0):
    """One committed step whose samples wrote ``memory``."""
    await ledger.admit(admission(ordinals(step).start, ordinals(step).stop))
    ask = claim_request("actor-0", actor, step=step - 1, lineage=lineage)
    leases = (await ledger.claim(ask)).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    await ledger.commit(
        step_commit(step, ordinals(step), learner, lineage=lineage, memory=tuple(memory))
    )


async def read(ledger, lineage, step):
    """All rows as of a version."""
    after, found = stored.BEGINNING, []
    while True:
        part = await ledger.memory_of(lineage, step, after)
        found += part.rows
        if not part.more:
            return found
        after = stored.place_of(found[-1])


async def entries(ledger, lineage, step):
    kept = {}
    apply_writes(kept, await read(ledger, lineage, step))
    return {key: one.value for key, one in kept.items()}


async def test_a_version_has_what_was_written_up_to_its_step_and_nothing_later(ledger):
    learner, actor = await started(ledger, 0)
    await write(ledger, learner, actor, 1, [row(1, "a"), row(1, "b", "2", vector=b"\0" * 8)])
    await write(ledger, learner, actor, 2, [row(2, "a", "3"), row(2, "b", "null")])

    assert await read(ledger, 0, 0) == []
    assert await read(ledger, 0, 1) == [row(1, "a"), row(1, "b", "2", vector=b"\0" * 8)]
    assert await entries(ledger, 0, 1) == {"a": "1", "b": "2"}
    assert await entries(ledger, 0, 2) == {"a": "3"}


async def test_rows_of_a_step_stand_in_the_order_of_tasks_samples_and_code_points(ledger):
    learner, actor = await started(ledger, 0)
    written = [
        row(1, key, ordinal=ordinal, sample=sample)
        for ordinal in (0, 2, 10)
        for sample in (0, 1)
        for key in ("B", "a", "a b", "a-c", "ä", "漢", "😀")
    ]
    await write(ledger, learner, actor, 1, random.Random(1).sample(written, len(written)))
    assert await read(ledger, 0, 1) == written


async def test_more_than_one_answer_holds_is_read_in_parts(ledger, monkeypatch):
    monkeypatch.setattr(stored, "PART_ROWS", AT_ONCE)
    learner, actor = await started(ledger, 0)
    for step in (1, 2, 3):
        await write(ledger, learner, actor, step, [row(step, f"k{n}") for n in range(4)])
    assert await read(ledger, 0, 3) == [row(step, f"k{n}") for step in (1, 2, 3) for n in range(4)]
    part = await ledger.memory_of(0, 3, stored.BEGINNING)
    assert (len(part.rows), part.more) == (AT_ONCE, True)


async def test_a_fork_reads_its_parents_past_and_its_own_steps(ledger):
    learner, actor = await started(ledger, 0)
    for step in (1, 2, 3):
        await write(
            ledger, learner, actor, step, [row(step, "a", str(step)), row(step, f"s{step}")]
        )
    assert await ledger.fork(learner, 1, version(1, 1, "fork"), "chain-1-1", "diverged") == 1
    assert await entries(ledger, 1, 1) == {"a": "1", "s1": "1"}

    await ledger.commit(step_commit(2, ordinals(2), learner, lineage=1, memory=(row(2, "a", "7"),)))

    assert await entries(ledger, 1, 2) == {"s1": "1", "a": "7"}
    assert await entries(ledger, 0, 3) == {"s1": "1", "s2": "1", "a": "3", "s3": "1"}


async def test_whoever_goes_back_reads_what_was_there_then(ledger):
    learner, actor = await started(ledger, 0)
    for step in (1, 2, 3):
        await write(ledger, learner, actor, step, [row(step, "a", str(step))])
    assert await ledger.go_back(anchor(2), "from a snapshot") == 1
    assert await entries(ledger, 1, 2) == {"a": "2"}
    learner, actor = await back(ledger)
    await ledger.commit(step_commit(3, ordinals(3), learner, lineage=1, memory=(row(3, "b"),)))
    assert await entries(ledger, 1, 3) == {"a": "2", "b": "1"}


async def test_the_same_commit_twice_writes_once(ledger):
    learner, actor = await started(ledger, 0)
    await write(ledger, learner, actor, 1, [row(1, "a")])
    await ledger.commit(step_commit(1, ordinals(1), learner, memory=(row(1, "a"),)))
    assert await read(ledger, 0, 1) == [row(1, "a")]


async def test_a_commit_that_is_refused_writes_nothing(ledger):
    learner, actor = await started(ledger, 0)
    with pytest.raises(LedgerError, match="never accepted"):
        await ledger.commit(step_commit(1, ordinals(1), learner, memory=(row(1, "a"),)))
    assert await read(ledger, 0, LATER) == []
    assert actor


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("change", ["vector = 'text'", "value = x'00'"])
async def test_a_row_that_somebody_wrote_into_is_named(ledger, damage, change):
    learner, actor = await started(ledger, 0)
    await write(ledger, learner, actor, 1, [row(1, "a")])
    damage(f"UPDATE memory SET {change}")
    with pytest.raises(LedgerBroken, match="table memory"):
        await ledger.memory_of(0, LATER, stored.BEGINNING)


async def test_a_cut_takes_what_is_there_and_its_run_goes_on_with_it(
    ledger, read_ledger, open_ledger, tmp_path
):
    learner, actor = await started(ledger, 0)
    await write(ledger, learner, actor, 1, [row(1, "a"), row(1, "b"), row(1, "c")])
    await write(ledger, learner, actor, 2, [row(2, "a", "2"), row(2, "b", "null")])
    await write(ledger, learner, actor, 3, [row(3, "a", "3")])
    await ledger.save_anchor(learner, anchor(2))
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(lambda found: found[-1])

    assert [one[4:6] for one in cut.tables["memory"]] == [("c", "1"), ("a", "2")]
    (tmp_path / "other").mkdir()
    other = open_ledger(tmp_path / "other", Clock(), Limits())
    await other.restore(cut, "from a snapshot")
    assert await entries(other, 0, 2) == await entries(ledger, 0, 2) == {"c": "1", "a": "2"}
    with pytest.raises(NoLongerKept, match="step 1"):
        await other.memory_of(0, 1, stored.BEGINNING)
    await other.close()


async def test_what_was_overwritten_goes_up_to_the_oldest_anchor_and_reads_stay(ledger):
    learner, actor = await started(ledger, 0)
    for step in range(1, 6):
        gone = [row(step, "n", "null")] if step == 3 else []
        await write(
            ledger, learner, actor, step, [row(step, "a", str(step)), row(step, f"k{step}"), *gone]
        )
    await ledger.save_anchor(learner, anchor(4))
    before = {step: await entries(ledger, 0, step) for step in (4, 5)}

    with pytest.raises(LedgerError, match="memory of steps up to 5 cannot be removed"):
        await ledger.prune_memory(5)
    assert not await ledger.prune_memory(4)
    assert not await ledger.prune_memory(4)

    assert {step: await entries(ledger, 0, step) for step in (4, 5)} == before
    assert [(one.step, one.key) for one in await read(ledger, 0, 4)] == [
        *((1, "k1"), (2, "k2"), (3, "k3"), (4, "a"), (4, "k4")),
    ]
    with pytest.raises(NoLongerKept, match="step 3"):
        await ledger.memory_of(0, 3, stored.BEGINNING)


async def test_whoever_goes_back_behind_what_was_pruned_brings_it_along(
    ledger, read_ledger, tmp_path
):
    learner, actor = await started(ledger, 0)
    for step in range(1, 5):
        await write(ledger, learner, actor, step, [row(step, "a", str(step))])
        if step == 2:
            await ledger.save_anchor(learner, anchor(2))
            with read_ledger(tmp_path) as reader:
                _, cut = reader.cut(lambda found: found[-1])
    await ledger.save_anchor(learner, anchor(4))
    await ledger.delete_anchors([(0, 2)])
    await ledger.prune_memory(4)

    lineage = await ledger.go_back(anchor(2), "from a snapshot", cut.tables["memory"])

    assert await entries(ledger, lineage, 2) == {"a": "2"}


async def test_any_history_reads_as_plain_dictionaries_would(ledger, monkeypatch):
    monkeypatch.setattr(stored, "PART_ROWS", AT_ONCE)
    monkeypatch.setattr("rollout.memory.ENTRIES_MAX", 5)
    draw, meant = random.Random(7), {(0, 0): {}}
    learner, actor = await started(ledger, 0)
    lineage, step = 0, 0
    for _ in range(14):
        if step > 1 and draw.random() < 0.2:
            base = draw.randint(1, step)
            salt = f"f{lineage}"
            made = await ledger.fork(learner, base, version(base, 0, salt), salt, "diverged")
            meant[made, base] = dict(await _as_of(meant, ledger, lineage, base))
            lineage, step = made, base
            continue
        step += 1
        memory = [
            row(
                step, f"k{draw.randrange(8)}", draw.choice(["1", "2", "null"]), n, draw.randrange(2)
            )
            for n in range(draw.randrange(4))
        ]
        await _commit(ledger, learner, actor, step, lineage, memory)
        after = dict(meant[lineage, step - 1])
        for one in memory:
            after.pop(one.key, None)
            if one.value != "null":
                after[one.key] = one.value
            if len(after) > 5:
                del after[next(iter(after))]
        meant[lineage, step] = after
    for (at, when), wanted in meant.items():
        found = await entries(ledger, at, when)
        assert list(found.items()) == list(wanted.items()), (at, when)


async def _as_of(meant, ledger, lineage, base):
    chain = [key for key in meant if key[1] == base]
    return meant.get((lineage, base)) or meant[max(key for key in chain if key[0] <= lineage)]


async def _commit(ledger, learner, actor, step, lineage, memory):
    """The tasks of a step that a fork has opened again are done already."""
    if (await ledger.load()).next_admitted <= ordinals(step).start:
        await write(ledger, learner, actor, step, memory, lineage)
        return
    await ledger.commit(
        step_commit(step, ordinals(step), learner, lineage=lineage, memory=tuple(memory))
    )


def test_what_a_run_keeps_is_bounded():
    kept = {}
    apply_writes(kept, (row(1, f"k{n}") for n in range(ENTRIES_MAX + 10)))
    assert (len(kept), next(iter(kept))) == (ENTRIES_MAX, "k10")
    assert msgspec.structs.asdict(kept["k10"])["value"] == "1"
