"""A ledger is cut at the step of an anchor, and another one begins there: same head, same queue, nobody's leases."""

import msgspec
import pytest
from ledger_kit import (
    NUM_SAMPLES,
    Clock,
    admission,
    claim_request,
    failed,
    finished,
    started,
    step_commit,
)
from test_bodies_go_when_nothing_needs_them import GROUPS, anchor, fill, ordinals

from rollout.errors import LedgerError
from rollout.ledger.cuts import decode_cut, encode_cut
from rollout.ledger.records import Limits, NewEvaluation, NewTask


def at(step):
    return lambda found: next(one for one in found if one.step == step)


def whole(cut):
    """As a cut comes from its objects."""
    return msgspec.structs.replace(
        decode_cut(encode_cut(cut)), bodies=cut.bodies, prefixes=cut.prefixes
    )


@pytest.fixture
def begin(open_ledger, tmp_path):
    async def begin_at(cut):
        (tmp_path / "new").mkdir(exist_ok=True)
        ledger = open_ledger(tmp_path / "new", Clock(), Limits())
        await ledger.restore(whole(cut), "from a snapshot")
        return ledger

    return begin_at


@pytest.fixture
async def old(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def test_at_its_head_all_that_waits_is_there(old, read_ledger, tmp_path, begin):
    await fill(old)
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(6))
    new = await begin(cut)

    before, after = await old.load(), await new.load()
    await new.close()
    assert not cut.rewound
    for name in ("lineage", "head", "first_waiting", "next_admitted", "exhausted", "groups"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("dispositions", "recent_metrics", "recent_rewards", "initial_chain", "initial"):
        assert getattr(after, name) == getattr(before, name), name
    assert [one.step for one in after.anchors] == [6]
    assert [(one.lineage, one.step) for one in after.versions] == [(0, 6)]


async def test_a_lease_is_nobodys_and_keeps_its_fence(old, read_ledger, tmp_path, begin):
    learner, actor = await started(old, GROUPS)
    await old.save_anchor(learner, anchor(0))
    [lease, *_] = (await old.claim(claim_request("actor-0", actor))).leases
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(0))

    new = await begin(cut)
    groups = (await new.load()).groups
    other = (await new.register("actor-9", "actor")).incarnation
    again = (await new.claim(claim_request("actor-9", other))).leases
    await new.close()

    assert cut.num_leased == GROUPS
    assert [(group.state, group.lease) for group in groups] == [("open", None)] * GROUPS
    assert [one.task.task_id for one in again] == [group.task.task_id for group in groups]
    assert again[0].epoch > lease.epoch


async def test_a_run_that_went_on_is_rewound_to_what_the_step_had(
    old, read_ledger, tmp_path, begin
):
    learner, actor = await started(old, 0)
    for step in range(1, 4):
        await old.admit(admission(ordinals(step).start, ordinals(step).stop))
        leases = (await old.claim(claim_request("actor-0", actor, step=step - 1))).leases
        await old.submit("actor-0", actor, [finished(lease) for lease in leases])
        await old.commit(step_commit(step, ordinals(step), learner))
        await old.save_anchor(learner, anchor(step))
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(1))
    new = await begin(cut)
    state = await new.load()
    await new.close()

    assert cut.rewound
    assert state.head.step == 1
    assert state.dispositions == {"consumed": GROUPS * NUM_SAMPLES}
    # Sampled from version 1: it had been there, or would be sampled again to the same tokens.
    assert [group.task.ordinal for group in state.groups] == list(ordinals(2))
    assert all(group.state == "done" and group.body for group in state.groups)
    assert state.next_admitted == ordinals(2).stop


async def test_samples_of_later_versions_do_not_come_along(old, read_ledger, tmp_path, begin):
    learner, actor = await started(old, 3 * GROUPS)
    leases = (await old.claim(claim_request("actor-0", actor, tasks_max=GROUPS))).leases
    await old.submit("actor-0", actor, [finished(lease) for lease in leases])
    await old.commit(step_commit(1, ordinals(1), learner))
    await old.save_anchor(learner, anchor(1))
    leases = (await old.claim(claim_request("actor-0", actor, step=1, tasks_max=1))).leases
    failing = (
        await old.claim(
            claim_request(
                "actor-0", actor, step=1, tasks_max=1, held=tuple(x.task.task_id for x in leases)
            )
        )
    ).leases
    await old.submit("actor-0", actor, [failed(failing[0])])
    rest = (
        await old.claim(
            claim_request(
                "actor-0", actor, step=2, tasks_max=9, held=tuple(x.task.task_id for x in leases)
            )
        )
    ).leases
    await old.submit("actor-0", actor, [finished(one) for one in (*leases, *rest)])
    await old.commit(step_commit(2, ordinals(2), learner))
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(1))
    new = await begin(cut)
    state = await new.load()
    await new.close()

    assert [(g.task.ordinal, g.state) for g in state.groups] == [(2, "done")]
    assert state.next_admitted == 3


async def test_beginnings_and_open_evaluations_come_along(old, read_ledger, tmp_path, begin):
    _, actor = await fill(old)
    tasks = tuple(
        NewTask(
            task_id=f"e/held/report/0-6/{n}",
            kind="eval",
            ordinal=n,
            num_samples=1,
            evaluation="held",
            split="report",
            lineage=0,
            step=6,
        )
        for n in range(3)
    )
    evaluation = NewEvaluation(name="held", split="report", lineage=0, step=6, tasks=tasks)
    await old.admit(admission(14, 15, evaluations=(evaluation,)))
    leases = (await old.claim(claim_request("actor-0", actor, tasks_max=1, step=6))).leases
    await old.submit("actor-0", actor, [finished(lease) for lease in leases])
    [again] = (await old.claim(claim_request("actor-0", actor, tasks_max=1, step=6))).leases
    end = msgspec.structs.replace(failed(again, "returned"), prefixes=b"beginning")
    await old.submit("actor-0", actor, [end])
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(6))
    new = await begin(cut)
    before, after = await old.load(), await new.load()
    kept = await new.prefixes_of([again.task.task_id])
    await new.close()

    assert after.evaluations == before.evaluations
    assert [one.name for one in after.evaluations] == ["held"]
    assert kept == {again.task.task_id: b"beginning"}


async def test_the_books_of_the_past_are_told_as_removed_and_go_on(
    old, read_ledger, tmp_path, begin
):
    await fill(old)
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(6))
    new = await begin(cut)
    incarnation = (await new.register("learner", "learner")).incarnation
    await new.commit(step_commit(7, ordinals(7), incarnation))
    state = await new.load()
    with pytest.raises(LedgerError, match="no longer kept"):
        await new.batch_of(6)
    await new.close()

    assert state.head.step == 7
    assert state.dispositions == {"consumed": 7 * GROUPS * NUM_SAMPLES}


async def test_a_ledger_that_has_begun_is_not_restored_into(old, read_ledger, tmp_path, begin):
    await fill(old)
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(6))
    before = await old.load()

    with pytest.raises(LedgerError, match="another run's folder"):
        await old.restore(whole(cut), "x")
    assert await old.load() == before


async def test_a_cut_of_no_ledger_changes_nothing(old, read_ledger, tmp_path, open_ledger):
    await fill(old)
    with read_ledger(tmp_path) as reader:
        _, cut = reader.cut(at(6))
    (tmp_path / "new").mkdir()
    new = open_ledger(tmp_path / "new", Clock(), Limits())
    before = await new.load()
    for table, rows in [
        ("tasks", ((1,),)),
        ("run", ((1, "x"),)),
        ("tallies; DROP TABLE run", (("a",),)),
        ("anchors", ((0, 6, ["list"], "{}", 0.0, 0),)),
        ("dispositions", ((0, "t/1", 0, 1, "eaten", "", None),)),
    ]:
        bad = msgspec.structs.replace(cut, tables={**cut.tables, table: rows})
        with pytest.raises(LedgerError):
            await new.restore(bad, "x")
        assert await new.load() == before
    await new.close()


@pytest.mark.parametrize(
    "data", [b"", b"\x81", b"\xc1", msgspec.msgpack.encode({"format": 99}), b"\x93" * 5000]
)
def test_bytes_that_are_no_cut_are_refused(data):
    with pytest.raises(LedgerError):
        decode_cut(data)
