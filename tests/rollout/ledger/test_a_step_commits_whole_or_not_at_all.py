import pytest
from ledger_kit import (
    NUM_SAMPLES,
    Clock,
    admission,
    claim_request,
    consume,
    finished,
    started,
    step_commit,
    version,
)
from msgspec import structs

from rollout.errors import Fenced, LedgerError
from rollout.ledger.records import AnchorManifest, Disposition, Limits, NewEvaluation, NewTask


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def sampled(ledger, num_tasks):
    """Learner and actor incarnations of a run whose first tasks are all done."""
    learner, actor = await started(ledger, num_tasks)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    return learner, actor


async def test_a_committed_step_comes_back_as_it_was(ledger):
    await sampled(ledger, 4)
    await ledger.commit(step_commit(1, range(2)))
    record = await ledger.record(1)
    batch = await ledger.batch_of(1)
    assert record.version == version(1)
    assert record.plan == {"micro_batches": [[0, 1]]}
    assert len(record.consumed) == 2 * NUM_SAMPLES
    assert tuple(sample[2] for sample in batch.samples) == record.consumed
    assert sorted(batch.bodies) == ["t/0", "t/1"]
    state = await ledger.load()
    assert [group.task.ordinal for group in state.groups] == [2, 3]
    assert state.dispositions == {"consumed": 2 * NUM_SAMPLES}


async def test_an_equal_commit_is_accepted_twice_and_another_one_is_not(ledger):
    await sampled(ledger, 2)
    await ledger.commit(step_commit(1, range(2)))
    await ledger.commit(step_commit(1, range(2)))
    with pytest.raises(LedgerError, match="diverged"):
        await ledger.commit(step_commit(1, range(2), salt="other"))
    assert (await ledger.load()).dispositions == {"consumed": 2 * NUM_SAMPLES}


async def test_nothing_is_consumed_twice(ledger):
    await sampled(ledger, 2)
    await ledger.commit(step_commit(1, range(2)))
    with pytest.raises(LedgerError):
        await ledger.commit(step_commit(2, range(2)))
    assert await ledger.record(2) is None


async def test_a_sample_that_was_never_accepted_cannot_be_consumed(ledger):
    await started(ledger, 2)
    with pytest.raises(LedgerError, match="never accepted"):
        await ledger.commit(step_commit(1, range(1), admission=admission(2, 9)))
    state = await ledger.load()
    assert (state.head, state.dispositions, state.next_admitted) == (None, {}, 2)


async def test_steps_come_in_order(ledger):
    await sampled(ledger, 4)
    with pytest.raises(LedgerError, match="cannot follow"):
        await ledger.commit(step_commit(2, range(2)))


async def test_a_replaced_learner_cannot_commit(ledger):
    await sampled(ledger, 2)
    await ledger.register("learner", "learner")
    with pytest.raises(Fenced):
        await ledger.commit(step_commit(1, range(2), incarnation=1))


async def test_a_step_admits_new_tasks_and_evaluations_with_it(ledger):
    await sampled(ledger, 2)
    task = NewTask(
        task_id="e/heldout/selection/0-1/0",
        kind="eval",
        ordinal=0,
        num_samples=1,
        evaluation="heldout",
        split="selection",
        step=1,
    )
    evaluation = NewEvaluation(name="heldout", split="selection", lineage=0, step=1, tasks=(task,))
    await ledger.commit(
        step_commit(1, range(2), admission=admission(2, 4, evaluations=(evaluation,)))
    )
    leases = (await ledger.claim(claim_request("actor-0", 1, step=1))).leases
    assert [lease.task.kind for lease in leases] == ["eval", "train", "train"]
    assert {(lease.version_lineage, lease.version_step) for lease in leases} == {(0, 1)}
    await ledger.finish_evaluation("heldout", "selection", 0, 1, {"accuracy": 0.5})
    assert (await ledger.load()).evaluations[0].summary == {"accuracy": 0.5}


async def test_samples_that_no_step_took_keep_their_reason(ledger):
    await sampled(ledger, 3)
    rest = tuple(
        Disposition(task_id="t/1", sample=sample, kind="filtered", reason="zero variance")
        for sample in range(NUM_SAMPLES)
    )
    await ledger.commit(step_commit(1, range(2), dispositions=consume(range(1)) + rest))
    surplus = tuple(
        Disposition(task_id="t/2", sample=sample, kind="surplus", reason="the run ended")
        for sample in range(NUM_SAMPLES)
    )
    await ledger.dispose(1, surplus)
    assert (await ledger.load()).dispositions == {"consumed": 2, "filtered": 2, "surplus": 2}


async def test_a_fork_frees_what_dead_steps_took_and_keeps_the_rest(ledger):
    learner, _ = await sampled(ledger, 4)
    await ledger.commit(step_commit(1, range(2)))
    await ledger.commit(step_commit(2, range(2, 4)))
    lineage = await ledger.fork(learner, 1, version(1, 1), "chain-1-1", "digest differs")
    state = await ledger.load()
    assert lineage == 1
    assert state.head.step == 1
    assert state.ancestry == ((1, None), (0, 1))
    assert [group.state for group in state.groups] == ["done", "done"]
    assert state.dispositions == {"consumed": 2 * NUM_SAMPLES}
    with pytest.raises(LedgerError, match="lineage 1 is live"):
        await ledger.commit(step_commit(2, range(2, 4), learner))
    await ledger.commit(step_commit(2, range(2, 4), learner, lineage=1))
    assert [record.lineage for record in await ledger.records_after(0)] == [0, 1]
    with pytest.raises(LedgerError, match="already ended in lineage 0"):
        await ledger.commit(step_commit(3, range(1), learner, lineage=1))


async def test_only_anchors_of_the_live_chain_are_offered(ledger):
    learner, _ = await sampled(ledger, 4)
    for step in (1, 2):
        await ledger.commit(step_commit(step, range(2 * step - 2, 2 * step)))
        manifest = AnchorManifest(
            name=f"step-{step:06d}", lineage=0, step=step, chain="c", version=version(step),
            objects={"optimizer": "blake3:" + "1" * 64},
        )  # fmt: skip
        await ledger.save_anchor(learner, manifest)
    await ledger.fork(learner, 1, version(1, 1), "c", "digest differs")
    assert [anchor.name for anchor in (await ledger.load()).anchors] == ["step-000001"]
    await ledger.delete_anchors([(0, 1)])
    assert (await ledger.load()).anchors == ()


async def test_offline_rows_are_consumed_without_trajectories(ledger):
    learner = (await ledger.register("learner", "learner")).incarnation
    await ledger.publish_initial(learner, version(0), "")
    rows = tuple(NewTask(task_id=f"r/{i}", kind="row", ordinal=i, num_samples=1) for i in range(3))
    taken = tuple(
        Disposition(task_id=row.task_id, sample=0, kind="consumed", place=i)
        for i, row in enumerate(rows)
    )
    await ledger.commit(step_commit(1, range(3), learner, rows=rows, dispositions=taken))
    assert (await ledger.record(1)).consumed == ("r/0", "r/1", "r/2")


async def test_the_first_version_cannot_change_under_a_run(ledger):
    learner, _ = await started(ledger)
    await ledger.publish_initial(learner, version(0), "chain-0-0")
    with pytest.raises(LedgerError, match="model changed"):
        await ledger.publish_initial(learner, version(0, salt="other"), "chain-0-0")


async def test_metrics_come_back_in_order(ledger):
    await sampled(ledger, 4)
    await ledger.commit(step_commit(1, range(2)))
    await ledger.commit(step_commit(2, range(2, 4), tracked_step=1))
    assert [item[1] for item in await ledger.metrics_after(1)] == [2]
    assert (await ledger.load()).tracked_step == 1


async def test_a_sample_that_infrastructure_took_cannot_be_consumed(ledger):
    learner, actor = await started(ledger, 1)
    lease = (await ledger.claim(claim_request("actor-0", actor))).leases[0]
    survivors = structs.replace(finished(lease), samples=finished(lease).samples[1:])
    await ledger.submit("actor-0", actor, [survivors])
    with pytest.raises(LedgerError, match="consumes t/0/0, never accepted"):
        await ledger.commit(step_commit(1, range(1), learner))
    excluded = Disposition(task_id="t/0", sample=0, kind="excluded", reason="the node went away")
    taken = Disposition(task_id="t/0", sample=1, kind="consumed", place=0)
    await ledger.commit(step_commit(1, range(1), learner, dispositions=(excluded, taken)))
    assert (await ledger.load()).dispositions == {"consumed": 1, "excluded": 1}
