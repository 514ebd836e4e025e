"""The pods of a learner find each other through the coordinator, all of one start, or none."""

from __future__ import annotations

import threading

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import changed

from rollout.errors import CoordinatorError, Fenced
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.rendezvous import (
    LearnerGroup,
    Member,
    check_in,
    describe,
    keep_alive,
    leave,
    renew,
)

TWO = changed(PLAN, nodes=2)


def call(client, route, ask):
    return client.as_worker(f"learner-{ask.rank}").call(route, ask)


def join(rank, group=1, nonce="a", wait=0.0):
    return m.Join(
        group=group,
        rank=rank,
        address=f"10.0.0.{rank}:29400",
        nonce=f"{rank}{nonce}",
        wait_seconds=wait,
    )


def stays(rank, rendezvous, group=1, nonce="a"):
    return m.Stay(
        group=group,
        rank=rank,
        address=f"10.0.0.{rank}:29400",
        nonce=f"{rank}{nonce}",
        rendezvous=rendezvous,
    )


def left(rank, group=1, nonce="a", ok=True, message=""):
    return m.Left(
        group=group,
        rank=rank,
        nonce=f"{rank}{nonce}",
        ok=ok,
        message=message,
    )


def test_a_pod_waits_until_all_are_there_and_all_get_one_name(bench):
    client = bench.start(TWO)
    waiting = call(client, routes.JOIN, join(0))
    assert waiting.rendezvous == ""
    assert waiting.waiting.startswith("rank 1 of 2 not checked in")
    found = []
    asking = threading.Thread(
        target=lambda: found.append(call(client, routes.JOIN, join(0, wait=30.0)))
    )
    asking.start()
    last = call(client, routes.JOIN, join(1))
    asking.join(60.0)
    assert found == [last]
    assert last.addresses == ("10.0.0.0:29400", "10.0.0.1:29400")
    assert last.rendezvous.startswith("uid-1/1/")


def test_a_lost_answer_is_given_again(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    first = call(client, routes.JOIN, join(1))
    assert call(client, routes.JOIN, join(1)) == first == call(client, routes.JOIN, join(0))


def test_a_missing_rank_is_named_in_the_status(bench):
    client = bench.start(changed(PLAN, nodes=3))
    assert client.status().group is None
    call(client, routes.JOIN, join(0))
    call(client, routes.JOIN, join(2))
    status = client.status()
    assert (status.group.stage, status.group.missing) == ("Joining", (1,))
    (found,) = [one for one in status.waiting if one.who == "the learner's group"]
    assert found.culprit.startswith("rank 1 of 3 not checked in")


def test_an_older_incarnation_is_refused_also_by_the_next_coordinator(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0, group=4))
    call(client, routes.JOIN, join(0, group=5))
    old = {routes.JOIN: join(1, 4), routes.STAY: stays(1, "x", 4), routes.LEFT: left(1, 4)}
    for route, ask in old.items():
        with pytest.raises(Fenced, match="at incarnation 5, this pod is of 4"):
            call(client, route, ask)
    client = bench.start(TWO)
    with pytest.raises(Fenced, match="at incarnation 5"):
        call(client, routes.JOIN, join(0, group=4))


def test_the_next_incarnation_begins_with_nobody(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    before = call(client, routes.JOIN, join(1))
    assert call(client, routes.JOIN, join(0, group=2, nonce="b")).rendezvous == ""
    after = call(client, routes.JOIN, join(1, group=2, nonce="b"))
    assert after.rendezvous.startswith("uid-1/2/")
    assert after.rendezvous != before.rendezvous
    with pytest.raises(Fenced):
        call(client, routes.STAY, stays(0, before.rendezvous))


def test_a_rank_that_failed_asks_for_a_new_incarnation_by_name(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    call(client, routes.JOIN, join(1))
    assert client.status().group.stage == "Running"
    call(client, routes.LEFT, left(1, ok=False, message="exit code 1"))
    group = client.status().group
    assert (group.stage, group.message) == ("Failed", "rank 1 (learner-1) failed: exit code 1")
    assert "a new incarnation" in call(client, routes.JOIN, join(1, nonce="b")).waiting


def test_a_pod_that_was_started_again_does_not_slip_into_a_group_that_works(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    call(client, routes.JOIN, join(1))
    waiting = call(client, routes.JOIN, join(1, nonce="b"))
    assert waiting.rendezvous == ""
    assert "rank 1 (learner-1) was started again while its group worked" in waiting.waiting
    assert client.status().group.stage == "Failed"


def test_a_group_whose_every_pod_was_started_again_meets_anew(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    before = call(client, routes.JOIN, join(1))
    call(client, routes.JOIN, join(0, nonce="b"))
    after = call(client, routes.JOIN, join(1, nonce="b"))
    assert after.rendezvous not in {"", before.rendezvous}
    assert client.status().group.stage == "Running"


def test_a_new_coordinator_learns_the_group_from_those_who_work(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    name = call(client, routes.JOIN, join(1)).rendezvous
    client = bench.start(TWO)
    assert client.status().group.missing == (0, 1)
    call(client, routes.STAY, stays(0, name))
    call(client, routes.STAY, stays(1, name))
    assert client.status().group.stage == "Running"
    assert call(client, routes.JOIN, join(0)).rendezvous == name
    for rank in (0, 1):
        call(client, routes.LEFT, left(rank))
    assert client.status().group.stage == "Done"


def test_a_coordinator_that_dies_between_two_answers_gives_the_same_name(bench):
    client = bench.start(TWO)
    call(client, routes.JOIN, join(0))
    name = call(client, routes.JOIN, join(1)).rendezvous
    client = bench.start(TWO)
    call(client, routes.STAY, stays(1, name))
    assert call(client, routes.JOIN, join(0)).rendezvous == name
    assert client.status().group.stage == "Running"


def test_a_pod_that_was_started_again_meanwhile_does_not_get_the_old_place(bench):
    client = bench.start(changed(PLAN, nodes=3))
    for rank in range(3):
        joined = call(client, routes.JOIN, join(rank))
    client = bench.start(changed(PLAN, nodes=3))
    call(client, routes.STAY, stays(1, joined.rendezvous))
    assert call(client, routes.JOIN, join(0, nonce="b")).rendezvous == ""
    call(client, routes.STAY, stays(2, joined.rendezvous))
    assert "was started again" in call(client, routes.JOIN, join(0, nonce="c")).waiting
    assert client.status().group.stage == "Failed"


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_cannot_be_is_refused(bench, rank):
    client = bench.start(TWO)
    with pytest.raises(CoordinatorError, match=r"group of 2 \(learner.nodes\)"):
        call(client, routes.JOIN, join(rank))


def test_a_learner_of_a_finished_run_is_told_to_rest(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    learner.finish()
    client.call(routes.STOP, m.Stop(reason="Suspended"))
    assert call(client, routes.JOIN, join(0)).stop


def member(rank, nonce, at=0.0):
    return Member(worker=f"learner-{rank}", address=f"h{rank}:1", nonce=nonce, seen_at=at)


def test_a_silent_pod_is_named():
    group = renew(LearnerGroup(uid="u", size=1), 1, 0.0)
    check_in(group, 0, member(0, "a"))
    said = describe(group, 45.0, silent_seconds=30.0)
    assert (said.stage, said.message) == ("Running", "rank 0 (learner-0) silent for 45 s")


ACTS = st.lists(
    st.tuples(st.sampled_from(["join", "stay", "left"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=40,
)


@given(ACTS)
@settings(max_examples=120, deadline=None)
def test_two_that_meet_under_one_name_always_meet_the_same_others(acts):
    """Whatever order pods come, go and come again in: a name stands for one set of processes."""
    group = renew(LearnerGroup(uid="u", size=3), 1, 0.0)
    names: dict[str, tuple[str, ...]] = {}
    for act, rank, start in acts:
        nonce = f"{rank}-{start}"
        if act == "join":
            check_in(group, rank, member(rank, nonce))
        elif act == "stay":
            keep_alive(group, rank, member(rank, nonce), group.rendezvous or "elsewhere")
        else:
            leave(group, rank, nonce, ok=start > 0, message="x")
        if group.rendezvous and not group.missing() and not group.trouble:
            held = tuple(group.members[n].nonce for n in range(3))
            assert names.setdefault(group.rendezvous, held) == held
