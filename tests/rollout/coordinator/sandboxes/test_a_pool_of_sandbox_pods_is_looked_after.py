"""The pool of sandbox pods: each pod is one episode's, none is left over, and no more are made than there may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.sandboxes.pod_api import read_pods
from rollout.coordinator.sandboxes.pool import (
    REMOVE_AGAIN_SECONDS,
    UNSEEN_SECONDS,
    WISH_SECONDS,
    PodSeen,
    Pool,
    PoolBounds,
    PooledPod,
)

AGE = 100.0


class Cluster:
    """An API server with pods, and the time."""

    def __init__(self, pods_max: int = 4, warm: int = 0) -> None:
        self.pool = Pool(bounds=PoolBounds(pods_max=pods_max, warm=warm, age_seconds=AGE))
        self.there: dict[str, PodSeen] = {}
        self.now = 0.0
        self.made = 0

    def look(self, *, over: bool = False) -> None:
        self.now += 1.0
        self.pool.observe(self.there, self.now)
        step = self.pool.step(self.now, over=over)
        for name, uid in step.remove:
            assert self.there[name].uid == uid
            del self.there[name]
        for _ in range(step.make):
            self.made += 1
            name = f"pod-{self.made}"
            pod = PooledPod(name=name, secret=b"s", key=b"k", made_at=self.now)
            self.pool.add(pod)
            self.there[name] = PodSeen(name=name, uid=f"uid-{self.made}")

    def ready(self, name: str) -> None:
        self.there[name] = PodSeen(name=name, uid=self.there[name].uid, address="10.0.0.1")

    def end(self, name: str, **how: object) -> None:
        self.there[name] = PodSeen(name=name, uid=self.there[name].uid, ended=True, **how)


@given(
    st.lists(
        st.tuples(st.sampled_from(["claim", "ready", "end", "release", "look"]), st.integers(0, 5)),
        max_size=60,
    ),
    st.integers(1, 4),
    st.integers(0, 4),
)
def test_no_pod_is_given_twice_and_there_are_never_too_many(acts, pods_max, warm):
    cluster = Cluster(pods_max, min(warm, pods_max))
    given_to: dict[str, str] = {}
    for act, number in acts:
        names = sorted(cluster.there)
        name = names[number % len(names)] if names else ""
        if act == "claim" and (pod := cluster.pool.grant(f"claim-{number}", cluster.now)):
            assert given_to.setdefault(pod.name, f"claim-{number}") == f"claim-{number}"
        elif act == "ready" and name and not cluster.there[name].ended:
            cluster.ready(name)
        elif act == "end" and name:
            cluster.end(name)
        elif act == "release" and name:
            cluster.pool.release(name)
        cluster.look()
        assert len(cluster.there) <= pods_max
    for name in list(cluster.there):
        cluster.pool.release(name)
    for _ in range(4):
        cluster.look(over=True)
    assert not cluster.there


def test_what_waits_gets_a_pod_and_the_same_again_when_it_asks_again():
    cluster = Cluster()
    assert cluster.pool.grant("mine", cluster.now) is None
    cluster.look()
    cluster.ready("pod-1")
    cluster.look()
    first = cluster.pool.grant("mine", cluster.now)
    assert first is not None and first.name == "pod-1"
    assert cluster.pool.grant("mine", cluster.now) is first
    assert cluster.pool.grant("another", cluster.now) is None


def test_warm_pods_are_there_before_anybody_asks_and_are_made_again_when_taken():
    cluster = Cluster(pods_max=8, warm=2)
    cluster.look()
    assert sorted(cluster.there) == ["pod-1", "pod-2"]
    for name in list(cluster.there):
        cluster.ready(name)
    cluster.look()
    assert cluster.pool.grant("mine", cluster.now) is not None
    cluster.look()
    assert len(cluster.there) == 3


def test_a_wish_that_nobody_repeats_makes_no_pod():
    cluster = Cluster()
    cluster.pool.grant("gone", cluster.now)
    cluster.now += WISH_SECONDS
    cluster.look()
    assert not cluster.there


def test_a_wish_that_is_withdrawn_gives_back_what_it_had_and_gets_nothing_more():
    cluster = Cluster()
    cluster.pool.grant("mine", cluster.now)
    cluster.look()
    cluster.ready("pod-1")
    cluster.look()
    assert cluster.pool.grant("mine", cluster.now) is not None
    cluster.pool.withdraw("mine", cluster.now)
    assert cluster.pool.grant("mine", cluster.now) is None
    cluster.look()
    cluster.look()
    assert not cluster.there and not cluster.pool.wishes


def test_a_pod_whose_removal_failed_is_removed_again():
    cluster = Cluster()
    cluster.pool.grant("mine", cluster.now)
    cluster.look()
    cluster.ready("pod-1")
    cluster.pool.release("pod-1")
    cluster.pool.observe(cluster.there, cluster.now)
    assert cluster.pool.step(cluster.now).remove == (("pod-1", "uid-1"),)
    assert cluster.pool.step(cluster.now).remove == ()
    cluster.now += REMOVE_AGAIN_SECONDS
    cluster.pool.wishes.clear()
    cluster.look()
    assert not cluster.there


def test_pods_of_an_earlier_life_are_removed_and_count_until_they_are_gone():
    cluster = Cluster(pods_max=1, warm=1)
    cluster.there["old"] = PodSeen(name="old", uid="uid-old", address="10.0.0.9")
    cluster.look()
    assert not cluster.there
    cluster.look()
    assert list(cluster.there) == ["pod-1"]


def test_a_pod_is_removed_when_it_is_too_old_whoever_has_it():
    cluster = Cluster()
    cluster.pool.grant("mine", cluster.now)
    cluster.look()
    cluster.ready("pod-1")
    cluster.look()
    cluster.pool.grant("mine", cluster.now)
    cluster.now += AGE
    cluster.look()
    assert not cluster.there


def test_a_pod_that_nobody_lists_is_forgotten_in_time():
    cluster = Cluster(pods_max=1)
    cluster.pool.grant("mine", cluster.now)
    cluster.look()
    del cluster.there["pod-1"]
    cluster.look()
    assert cluster.pool.pods
    cluster.now += UNSEEN_SECONDS
    cluster.look()
    assert "pod-1" not in cluster.pool.pods


def test_pods_that_end_at_once_are_made_ever_more_slowly_and_whoever_waits_is_told_why():
    cluster = Cluster(pods_max=2, warm=1)
    for _ in range(200):
        cluster.look()
        for name in list(cluster.there):
            if not cluster.there[name].ended:
                cluster.end(name, why="a sandbox pod ended: Error (1) no user namespace")
    assert cluster.made < 12
    assert "no user namespace" in cluster.pool.reason()


def test_whoever_waits_is_told_that_all_pods_are_in_use():
    cluster = Cluster(pods_max=1)
    cluster.pool.grant("mine", cluster.now)
    cluster.look()
    cluster.ready("pod-1")
    cluster.look()
    cluster.pool.grant("mine", cluster.now)
    assert cluster.pool.reason().startswith("all 1 sandbox pods that the runtime allows")


def test_a_list_of_pods_is_read_with_what_keeps_and_what_ended_them():
    found = read_pods(
        b"""{"items": [
        {"metadata": {"name": "a", "uid": "1"}, "status": {"phase": "Running", "podIP": "10.1.1.1",
         "containerStatuses": [{"ready": true, "state": {"running": {}}}]}},
        {"metadata": {"name": "b", "uid": "2"}, "status": {"phase": "Pending",
         "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]}},
        {"metadata": {"name": "c", "uid": "3"}, "status": {"phase": "Pending",
         "containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}}]}},
        {"metadata": {"name": "d", "uid": "4"}, "status": {"phase": "Failed",
         "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}},
        {"metadata": {"name": "e", "uid": "5", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
        ]}"""
    )
    assert found["a"].address == "10.1.1.1" and not found["a"].ended
    assert "0/2 nodes" in found["b"].why and not found["b"].address
    assert "ErrImageNeverPull: not there" in found["c"].why
    assert found["d"].ended and found["d"].past_memory
    assert found["e"].going
