"""The views of people and reports, the same for every ledger, beside a live run and after it."""

from __future__ import annotations

import msgspec
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

from rollout.codec import Outline
from rollout.errors import LedgerError
from rollout.ledger.records import AnchorManifest, Limits, NewEvaluation, NewTask
from rollout.ledger.sql.browsing import (
    MeasuredVersion,
    SampleQuery,
    read_answers,
    read_groups,
    read_rewards,
    read_workers,
    search,
)

STEPS = 3


@pytest.fixture
async def filled(open_ledger, tmp_path):
    """A ledger with a few committed steps, an evaluation and an anchor."""
    ledger = open_ledger(tmp_path, Clock(), Limits())
    learner, actor = await started(ledger, 2 * STEPS)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    for step in range(1, STEPS + 1):
        more = {"admission": _evaluation()} if step == 2 else {}
        await ledger.commit(step_commit(step, range(2 * step - 2, 2 * step), learner, **more))
    await ledger.save_anchor(
        learner,
        AnchorManifest(
            name="step-000002", lineage=0, step=2, chain="c", version=version(2), objects={}
        ),
    )
    yield ledger
    await ledger.close()


def _evaluation():
    task = NewTask(
        task_id="e/heldout/report/0-2/0", kind="eval", ordinal=0, num_samples=1,
        evaluation="heldout", split="report", step=2,
    )  # fmt: skip
    evaluation = NewEvaluation(name="heldout", split="report", lineage=0, step=2, tasks=(task,))
    return admission(6, 6, evaluations=(evaluation,))


async def test_a_reader_sees_the_run_its_steps_and_its_books(filled, read_ledger, tmp_path):
    with read_ledger(tmp_path) as reader:
        run = reader.run()
        assert (run.step, run.chain, run.version) == (STEPS, "chain-0-3", version(3))
        assert run.position == filled.position
        assert [step.chain for step in reader.steps()] == ["chain-0-1", "chain-0-2", "chain-0-3"]
        assert [step.step for step in reader.steps(after=1, limit=1)] == [2]
        assert reader.steps(after=2)[0].metrics["reward"] == 0.5
        assert reader.dispositions() == {"consumed": 2 * STEPS * NUM_SAMPLES, "pending": 0}
        assert reader.record(2) == await filled.record(2)
        assert reader.batch(2) == await filled.batch_of(2)
        assert reader.state() == await filled.load()
        assert reader.initial() == (version(0), "chain-0-0")
        assert [anchor.name for anchor in reader.anchors()] == ["step-000002"]


async def test_a_reader_follows_the_writer(filled, read_ledger, tmp_path):
    with read_ledger(tmp_path) as reader:
        await filled.admit(admission(6, 7))
        assert reader.dispositions()["pending"] == NUM_SAMPLES
        await filled.add_event("noted", "by hand", {"a": 1})
        assert [(e.kind, e.message, e.data) for e in reader.events()] == [
            ("noted", "by hand", {"a": 1})
        ]


async def test_samples_are_found_sorted_and_traced(filled, read_ledger, tmp_path):
    with read_ledger(tmp_path) as reader:
        assert [view.place for view in reader.samples(2)] == [0, 1, 2, 3]
        best = reader.samples(2, sort="reward")
        assert [view.trajectory.reward for view in best] == [1.0, 1.0, 0.0, 0.0]
        assert len(reader.samples(2, sort="length", limit=3)) == 3
        trace = reader.trace(best[0].trajectory_id.removeprefix("blake3:")[:16])
        assert trace.trajectory_id == best[0].trajectory_id
        assert [attempt.ending for attempt in trace.attempts] == ["accepted"]
        assert [(c.kind, c.step) for c in trace.consumptions] == [("consumed", 2)]
        assert (trace.version_after.step, trace.anchor) == (2, "step-000002")
        with pytest.raises(LedgerError, match="names nothing"):
            reader.trace("0123")


async def test_a_run_is_leafed_through_a_page_at_a_time(filled, read_ledger, tmp_path):
    def places(**asked):
        return [(one.step, one.place) for one in reader.browse(SampleQuery(**asked))]

    with read_ledger(tmp_path) as reader:
        assert places(limit=5) == [(3, 0), (3, 1), (3, 2), (3, 3), (2, 0)]
        assert places(limit=5, offset=9) == [(1, 1), (1, 2), (1, 3)]
        assert places(step=2, order="-reward") == [(2, 1), (2, 3), (2, 0), (2, 2)]
        assert places(step=2, order="reward", limit=1) == [(2, 0)]
        assert places(order="length", ending="stop", limit=1) == [(3, 0)]
        assert places(ending="length") == []
        [first] = reader.browse(SampleQuery(step=1, limit=1))
        assert (first.text, first.reward, first.num_tokens) == ("0", 0.0, 2)


async def test_a_sample_is_found_by_its_task_and_place(filled, read_ledger, tmp_path):
    with read_ledger(tmp_path) as reader:
        found = reader.sample("t/2", 1)
        whole = reader.trace(found.trajectory_id)
        outline = msgspec.convert(msgspec.to_builtins(whole.trajectory), Outline)
        assert found == msgspec.structs.replace(whole, trajectory=outline)
        with pytest.raises(LedgerError, match="no sample 9 of task 't/2'"):
            reader.sample("t/2", 9)


async def test_groups_workers_and_texts_are_read_by_pages(filled, read_ledger, tmp_path):
    with read_ledger(tmp_path) as reader, reader.snapshot() as tx:
        groups = read_groups(tx, 2, offset=1, limit=5)
        assert [(one.task_id, one.num, one.mean, one.worker) for one in groups] == [
            ("t/3", NUM_SAMPLES, 0.5, "actor-0")
        ]
        workers = {one.worker: (one.role, one.num_held, one.endings) for one in read_workers(tx)}
        assert workers == {
            "learner": ("learner", 0, {}),
            "actor-0": ("actor", 0, {"accepted": 2 * STEPS}),
        }
        found = search(tx, "1", newest=2, ending=None, have=reader.have)
        assert [(one.step, one.place) for one in found.rows] == [(2, 1), (2, 3), (1, 1), (1, 3)]
        assert (found.num_read, found.newest) == (8, None)


async def test_two_versions_of_an_evaluation_are_read_prompt_by_prompt(
    filled, read_ledger, tmp_path
):
    actor = (await filled.register("actor-0", "actor")).incarnation
    lease = (await filled.claim(claim_request("actor-0", actor))).leases[0]
    await filled.submit("actor-0", actor, [finished(lease)])
    of = MeasuredVersion(name="heldout", split="report", step=2)
    with read_ledger(tmp_path) as reader, reader.snapshot() as tx:
        assert read_rewards(tx, of) == {0: 0.0}
        answers = read_answers(tx, of, [0, 1], reader.have)
        assert {place: one.text for place, one in answers.items()} == {0: "0"}


async def test_evaluations_and_their_answers_are_found(filled, read_ledger, tmp_path):
    actor = (await filled.register("actor-0", "actor")).incarnation
    lease = (await filled.claim(claim_request("actor-0", actor))).leases[0]
    await filled.submit("actor-0", actor, [finished(lease)])
    await filled.finish_evaluation("heldout", "report", 0, 2, {"accuracy": 1.0})
    with read_ledger(tmp_path) as reader:
        assert [(e.name, e.num_prompts, e.summary) for e in reader.evaluations()] == [
            ("heldout", 1, {"accuracy": 1.0})
        ]
        answers = reader.evaluation_samples("heldout", "report", 2)
        assert [view.task_id for view in answers] == [lease.task.task_id]


async def test_a_message_may_hold_any_character(filled, read_ledger, tmp_path):
    await filled.add_event("noted", "nul \0 and \N{SNOWMAN}", {"words": "nul \0"})
    with read_ledger(tmp_path) as reader:
        event = reader.events()[0]
    assert event.message in {
        "nul \0 and \N{SNOWMAN}",
        "nul \N{REPLACEMENT CHARACTER} and \N{SNOWMAN}",
    }
    assert event.data == {"words": "nul \0"}


def test_a_ledger_that_is_not_there_is_told(read_ledger, tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        read_ledger(tmp_path)
