"""A version that is damaged or gone is stored again by the learner, before anybody is given a task of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordinator_kit import FakeActor, FakeLearner

from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes

WRONG = "blake3:" + "f" * 64


def tell(actor, version, digest="", *, message="", num_rebuilt=0):
    """One activation; ``digest`` empty: the load failed before there was anything to compare."""
    actor.call(
        routes.ACTIVATION,
        m.Activation(
            version=version,
            digest=digest,
            ok=digest == version.digest,
            seconds=0.1,
            message=message,
            num_rebuilt=num_rebuilt,
        ),
    )


def said_of(client, name):
    return next(one for one in client.status().workers if one.worker == name)


def damage(bench, digest):
    path = bench.store.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"x" + path.read_bytes()[1:])


def test_what_an_actor_made_anew_is_counted(bench):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    tell(actor, learner.version(0), WRONG, num_rebuilt=1)
    assert said_of(client, actor.name).num_rebuilt == 1


@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_version_is_stored_again_before_anybody_is_given_a_task(bench, gone):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    version = learner.version(0)
    if gone:
        bench.store.delete(version.object)
    else:
        damage(bench, version.object)
    tell(actor, version, message="ObjectDamaged: its bytes are others")
    assert actor.claim().tasks == ()
    waits = {one.who: one.culprit for one in client.status().waiting}
    assert "store version 0 again: it was damaged" in waits.get("actor-0", actor.claim().reason)
    batch = learner.ask()
    assert batch.store_again
    assert "has not stored version 0 again" in batch.waiting

    whole = replace(version, object=bench.store.put(b"the same weights in another file"))
    learner.call(routes.STORED_AGAIN, m.StoredAgain(version=whole))

    assert {task.version for task in actor.claim().tasks} == {whole}
    assert not learner.ask().store_again
    later = bench.start()
    learner.client = actor.client = later
    assert actor.claim(held=()).tasks[0].version == whole


def test_a_version_that_is_whole_is_left_as_it_is(bench):
    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    tell(actor, learner.version(0), message="StoreError: the network went away")
    assert not learner.ask().store_again
    assert len(actor.claim().tasks) == 2


def test_what_is_named_must_be_there_and_must_be_the_version(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    with pytest.raises(CoordinatorError, match="not in the store"):
        learner.call(
            routes.STORED_AGAIN, m.StoredAgain(version=replace(learner.version(0), object=WRONG))
        )
    with pytest.raises(Exception, match="not what was committed"):
        learner.call(
            routes.STORED_AGAIN, m.StoredAgain(version=replace(learner.version(0), digest=WRONG))
        )
