"""Two losses at a checkpoint that other frameworks had, told again against ours. A planted bug shows that each would be seen."""

import shutil

import msgspec
import pytest
from ledger_kit import IDENTITY, NUM_SAMPLES, Clock, claim_request, finished, step_commit
from snapshot_kit import GROUPS, admit, make_run, open_at, ordinals, save_state, snapshot

from rollout.errors import LedgerError
from rollout.ledger.records import Limits
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.snapshots.layers.registry import BUFFER

CYCLES = 6


async def go_on(folder, signer, step, change=lambda cut: cut):
    """Another run takes ``step`` after a snapshot of this one, and stops as it did: one group made, one in the making.

    Gives its folder, and the ordinals that had to be made.
    """
    made = snapshot(folder, signer)
    there = folder.with_name(f"after-{step}")
    shutil.copytree(folder / "objects", there / "objects")
    store = open_at(there / "objects").store
    ledger = SqliteLedger(there / "ledger.db", IDENTITY, Limits(), Clock())
    try:
        await ledger.restore(change(BUFFER.read(made.layer("buffer"), store)), "from a snapshot")
        learner = (await ledger.register("learner", "learner")).incarnation
        actor = (await ledger.register("actor-0", "actor")).incarnation
        claim = claim_request("actor-0", actor, step=step - 1)
        leases = (await ledger.claim(claim)).leases
        await ledger.submit("actor-0", actor, [finished(one) for one in leases])
        await ledger.commit(step_commit(step, ordinals(step), learner))
        await ledger.save_anchor(learner, save_state(store, step))
        await admit(ledger, step + 1)
        short, *_ = (await ledger.claim(claim_request("actor-0", actor, step=step))).leases
        await ledger.submit("actor-0", actor, [finished(short)])
    finally:
        await ledger.close()
    return there, [one.task.ordinal for one in leases]


def trained_on(folder, step):
    with LedgerReader(folder / "ledger.db") as ledger:
        return {one.task_id for one in ledger.samples(step)}


@pytest.fixture
async def run(tmp_path):
    """Four steps, and of the fifth one group that waits and one that is being made."""
    await make_run(tmp_path / "run")
    return tmp_path / "run"


async def test_samples_that_wait_for_their_step_are_not_dropped(run, signer):
    """OpenRLHF, issue 1322: its checkpoint forgot the replay buffer, whose prompts were never asked again."""
    waiting, in_flight = ordinals(5)
    there, made = await go_on(run, signer, 5)
    assert made == [in_flight]
    assert trained_on(there, 5) == {f"t/{waiting}", f"t/{in_flight}"}


async def test_prompts_whose_answers_are_long_are_not_skipped(run, signer):
    """NeMo-RL, PR 3599: each checkpoint skipped what was being made, which are the long ones; here six follow each other."""
    folder = run
    for step in range(5, 5 + CYCLES):
        folder, made = await go_on(folder, signer, step)
        assert made == [ordinals(step).stop - 1]
        assert trained_on(folder, step) == {f"t/{one}" for one in ordinals(step)}
    with LedgerReader(folder / "ledger.db") as ledger:
        counted = ledger.dispositions()
    taken, left = (4 + CYCLES) * GROUPS * NUM_SAMPLES, GROUPS * NUM_SAMPLES
    assert counted == {"consumed": taken, "pending": left}


@pytest.mark.parametrize(
    "task", ["t/8", "t/9"], ids=["the one that waits", "the one in the making"]
)
async def test_either_loss_would_be_noticed(run, signer, task):
    def forget(cut):
        tables = {
            name: tuple(row for row in rows if task not in row) for name, rows in cut.tables.items()
        }
        bodies = {name: body for name, body in cut.bodies.items() if name != task}
        return msgspec.structs.replace(cut, tables=tables, bodies=bodies)

    with pytest.raises(LedgerError, match=task):
        await go_on(run, signer, 5, forget)
