"""Bodies that no resume replays are removed and written down as removed; all that names them stays."""

import pytest
from ledger_kit import (
    NUM_SAMPLES,
    Clock,
    admission,
    claim_request,
    finished,
    started,
    step_commit,
    version,
)

from rollout.errors import LedgerBroken, LedgerError, NoLongerKept
from rollout.ledger.records import AnchorManifest, Limits, NewEvaluation, NewTask, Removal

STEPS = 6
GROUPS = 2


def anchor(step, lineage=0):
    return AnchorManifest(
        name=f"step-{lineage}-{step}",
        lineage=lineage,
        step=step,
        chain="c",
        version=version(step, lineage),
        objects={},
    )


async def fill(ledger, *, anchors=(4, 6), steps=STEPS):
    """Steps of two groups each, two more groups that wait, and anchors; returns both incarnations."""
    learner, actor = await started(ledger, GROUPS * (steps + 1))
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    for step in range(1, steps + 1):
        await ledger.commit(step_commit(step, ordinals(step), learner))
    for step in anchors:
        await ledger.save_anchor(learner, anchor(step))
    return learner, actor


def ordinals(step):
    return range(GROUPS * (step - 1), GROUPS * step)


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def test_steps_that_no_snapshot_replays_lose_their_bodies_and_nothing_else(
    ledger, read_ledger, tmp_path
):
    await fill(ledger)
    with read_ledger(tmp_path) as reader:
        before = (await ledger.load(), await ledger.records_after(0), reader.samples(2))

    done = await ledger.remove_bodies(4, 100)

    assert (done.num_bodies, done.more) == (4 * GROUPS, False)
    assert done.size_bytes > 0
    assert (await ledger.load(), await ledger.records_after(0)) == before[:2]
    with read_ledger(tmp_path) as reader:
        told = reader.removed()
        assert (told.step, told.num_bodies) == (4, 4 * GROUPS)
        assert told.size_bytes == done.size_bytes
        assert reader.dispositions()["consumed"] == STEPS * GROUPS * NUM_SAMPLES
        assert [view.chain for view in reader.steps()] == [f"chain-0-{n}" for n in range(1, 7)]
        gone = reader.samples(2)
        assert [view.trajectory for view in gone] == [None] * GROUPS * NUM_SAMPLES
        named = [(view.trajectory_id, view.reward, view.num_tokens) for view in before[2]]
        assert [(view.trajectory_id, view.reward, view.num_tokens) for view in gone] == named
        assert all(view.trajectory is not None for view in reader.samples(5))


async def test_what_a_kept_snapshot_replays_comes_back_as_it_was(ledger, open_ledger, tmp_path):
    await fill(ledger)
    before = [await ledger.batch_of(step) for step in (5, 6)]

    await ledger.remove_bodies(4, 100)
    await ledger.close()
    again = open_ledger(tmp_path, Clock(), Limits())

    assert [await again.batch_of(step) for step in (5, 6)] == before
    assert [group.body is not None for group in (await again.load()).groups] == [True, True]
    await again.close()


async def test_a_step_whose_bodies_are_gone_is_refused_with_where_to_begin(
    ledger, read_ledger, tmp_path
):
    await fill(ledger)
    await ledger.remove_bodies(3, 100)
    with pytest.raises(NoLongerKept, match=r"step 2 .* up to 3 are no longer kept .* of step 3"):
        await ledger.batch_of(2)
    with read_ledger(tmp_path) as reader, pytest.raises(NoLongerKept, match="up to 3"):
        reader.batch(1)


async def test_a_removal_is_as_large_as_it_is_told_and_goes_on_where_it_stood(
    ledger, read_ledger, tmp_path
):
    await fill(ledger)
    sizes = []
    while not sizes or sizes[-1].more:
        sizes.append(await ledger.remove_bodies(4, 3))
        with read_ledger(tmp_path) as reader:
            assert all(view.trajectory is None for view in reader.samples(1))
            # The rest of a step that is half removed is still read.
            assert len(reader.samples(2)) == GROUPS * NUM_SAMPLES
    assert [one.num_bodies for one in sizes] == [3, 3, 2]
    assert await ledger.remove_bodies(4, 3) == Removal(num_bodies=0, size_bytes=0, more=False)
    assert await ledger.remove_bodies(1, 3) == Removal(num_bodies=0, size_bytes=0, more=False)
    with read_ledger(tmp_path) as reader:
        assert reader.removed().step == 4


@pytest.mark.parametrize(
    ("anchors", "step", "why"),
    [((), 1, "none is saved"), ((4, 6), 5, "the oldest one is of step 4"), ((4,), -1, "step 4")],
)
async def test_what_a_snapshot_may_need_is_not_removed(ledger, anchors, step, why):
    await fill(ledger, anchors=anchors)
    before = await ledger.batch_of(1)
    with pytest.raises(LedgerError, match=why):
        await ledger.remove_bodies(step, 100)
    assert await ledger.batch_of(1) == before


async def test_a_snapshot_that_was_deleted_needs_nothing_any_more(ledger):
    await fill(ledger)
    await ledger.delete_anchors([(0, 4)])
    assert (await ledger.remove_bodies(6, 100)).num_bodies == STEPS * GROUPS


async def test_a_lineage_cannot_take_again_what_is_gone(ledger):
    learner, _ = await fill(ledger)
    await ledger.remove_bodies(4, 100)
    with pytest.raises(NoLongerKept, match=r"fork after step 3: bodies of steps up to 4"):
        await ledger.fork(learner, 3, version(3, 1), "chain-1-3", "it differs")
    await ledger.fork(learner, 5, version(5, 1), "chain-1-5", "it differs")
    state = await ledger.load()
    assert [group.task.ordinal for group in state.groups] == [10, 11, 12, 13]
    assert all(group.body is not None for group in state.groups)
    await ledger.commit(step_commit(6, ordinals(6), learner, lineage=1))
    assert (await ledger.remove_bodies(4, 100)).num_bodies == 0


async def test_a_snapshot_of_a_step_that_a_fork_has_left_is_none(ledger):
    learner, _ = await fill(ledger, anchors=(3, 6))
    await ledger.fork(learner, 4, version(4, 1), "chain-1-4", "it differs")
    await ledger.delete_anchors([(0, 3)])
    with pytest.raises(LedgerError, match="none is saved"):
        await ledger.remove_bodies(2, 100)


def evaluation(step, prompts=3):
    tasks = tuple(
        NewTask(
            task_id=f"e/heldout/report/0-{step}/{n}",
            kind="eval",
            ordinal=n,
            num_samples=1,
            evaluation="heldout",
            split="report",
            step=step,
        )
        for n in range(prompts)
    )
    return NewEvaluation(name="heldout", split="report", lineage=0, step=step, tasks=tasks)


async def evaluate(ledger, actor, *steps, summary=None):
    for step in steps:
        await ledger.admit(admission(0, 0, evaluations=(evaluation(step),)))
        leases = (await ledger.claim(claim_request("actor-0", actor, train=False))).leases
        await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
        await ledger.finish_evaluation("heldout", "report", 0, step, summary or {"accuracy": 1.0})


async def test_answers_of_versions_between_the_first_and_the_newest_go(
    ledger, read_ledger, tmp_path
):
    _, actor = await fill(ledger)
    await evaluate(ledger, actor, 0, 1, 2, 3, 5)
    removed = [await ledger.remove_bodies(3, 100)]
    with read_ledger(tmp_path) as reader:
        kept = {
            step: [
                view.trajectory is not None
                for view in reader.evaluation_samples("heldout", "report", step)
            ]
            for step in (0, 1, 2, 3, 5)
        }
        assert reader.evaluations()[1].summary == {"accuracy": 1.0}
    assert removed[0].num_bodies == 3 * GROUPS + 9
    assert kept == {step: [step in (0, 5)] * 3 for step in kept}


async def test_answers_of_an_evaluation_under_way_stay(ledger, read_ledger, tmp_path):
    _, actor = await fill(ledger)
    await evaluate(ledger, actor, 0, 1)
    await ledger.admit(admission(0, 0, evaluations=(evaluation(2),)))
    leases = (await ledger.claim(claim_request("actor-0", actor, train=False, tasks_max=1))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    assert (await ledger.remove_bodies(4, 100)).num_bodies == 4 * GROUPS
    with read_ledger(tmp_path) as reader:
        for step, num in ((0, 3), (1, 3), (2, 1)):
            found = reader.evaluation_samples("heldout", "report", step)
            assert [view.trajectory is not None for view in found] == [True] * num


async def test_an_evaluation_may_go_in_parts(ledger, read_ledger, tmp_path):
    _, actor = await fill(ledger)
    await ledger.remove_bodies(4, 100)
    await evaluate(ledger, actor, 0, 1, 2, 3, 5)
    sizes = []
    while not sizes or sizes[-1].more:
        sizes.append(await ledger.remove_bodies(4, 2))
        with read_ledger(tmp_path) as reader:
            for step in (0, 1, 2, 3, 5):
                assert len(reader.evaluation_samples("heldout", "report", step)) == 3
    assert sum(one.num_bodies for one in sizes) == 9


async def test_a_body_that_nobody_removed_is_lost_and_told_so(
    ledger, read_ledger, tmp_path, damage
):
    await fill(ledger)
    await ledger.remove_bodies(4, 100)
    damage("DELETE FROM bodies WHERE task_id = 't/9'")
    with read_ledger(tmp_path) as reader:
        assert reader.samples(1)[0].trajectory is None
        with pytest.raises(LedgerBroken, match="has lost the body of t/9"):
            reader.samples(5)
        with pytest.raises(LedgerBroken, match="has lost the body of t/9"):
            reader.batch(5)


async def test_a_body_that_was_exchanged_is_told_beside_removed_ones(
    ledger, read_ledger, tmp_path, damage
):
    await fill(ledger)
    await ledger.remove_bodies(4, 100)
    damage(
        "UPDATE bodies SET body = (SELECT b.body FROM bodies b WHERE b.task_id = 't/10')"
        " WHERE task_id = 't/8'"
    )
    with read_ledger(tmp_path) as reader:
        gone, exchanged = reader.samples(1)[0], reader.samples(5)[0]
        assert reader.trace(gone.trajectory_id).trajectory is None
        with pytest.raises(LedgerError, match="does not have that name: damaged"):
            reader.trace(exchanged.trajectory_id)


async def test_a_trace_tells_what_is_left(ledger, read_ledger, tmp_path):
    await fill(ledger)
    await ledger.remove_bodies(4, 100)
    with read_ledger(tmp_path) as reader:
        view = reader.samples(2)[1]
        trace = reader.trace(view.trajectory_id)
    assert (trace.trajectory, trace.sample.reward, trace.sample.ending) == (None, 1.0, "stop")
    assert [(one.kind, one.step) for one in trace.consumptions] == [("consumed", 2)]
    assert trace.anchor == "step-0-4"
