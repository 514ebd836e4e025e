"""The weights of a committed version may come to lie in other objects; they stay the same weights."""

from dataclasses import replace

import pytest
from ledger_kit import Clock, claim_request, finished, started, step_commit, version

from rollout.errors import Fenced, LedgerError
from rollout.ledger.records import Limits


@pytest.fixture
async def ledger(open_ledger, tmp_path):
    made = open_ledger(tmp_path, Clock(), Limits())
    yield made
    await made.close()


async def committed(ledger):
    learner, actor = await started(ledger, 2)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
    await ledger.commit(step_commit(1, range(2)))
    return learner


async def test_the_other_objects_are_what_everybody_finds(ledger):
    learner = await committed(ledger)
    whole = replace(version(1), object="blake3:" + "a" * 64, bases=("blake3:" + "b" * 64,))
    await ledger.store_again(learner, whole)
    state = await ledger.load()
    assert {one.step: one for one in state.versions}[1] == whole
    assert (await ledger.record(1)).version == whole
    await ledger.commit(step_commit(1, range(2)))


async def test_other_weights_are_refused(ledger):
    learner = await committed(ledger)
    for other in (version(1, salt="other"), version(2)):
        with pytest.raises(LedgerError, match="not what was committed"):
            await ledger.store_again(learner, other)
    assert {one.step: one for one in (await ledger.load()).versions}[1] == version(1)


async def test_a_learner_that_was_replaced_is_refused(ledger):
    learner = await committed(ledger)
    await ledger.register("learner", "learner")
    with pytest.raises(Fenced):
        await ledger.store_again(learner, version(1))
