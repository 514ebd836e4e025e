"""Two replicas, one Lease: when the writer is killed the other writes, and nothing is made twice."""

from datetime import datetime

import pytest
from operators import eventually, operating
from stage import World, free_port

from runs import build_run

TAKE_OVER_SECONDS_MAX = 20.0
LEASE = {"ROLLOUT_LEADER_ELECTION": "true"}


@pytest.mark.process
def test_the_other_writes_within_twenty_seconds(bare, puppets, tmp_path):
    settings = LEASE | {"ROLLOUT_OPERATOR_NAMESPACE": bare.namespace}
    first_log, second_log = tmp_path / "first", tmp_path / "second"
    path = bare.kubeconfig
    with (
        operating(path, free_port(), first_log, ROLLOUT_IDENTITY="first", **settings) as first,
        operating(path, free_port(), second_log, ROLLOUT_IDENTITY="second", **settings) as second,
    ):
        eventually(lambda: holder(bare), "nobody took the Lease")
        leader, other = (first, second) if holder(bare) == "first" else (second, first)
        eventually(lambda: leader.metric("rollout_leader") == 1, "the holder does not lead")
        assert other.metric("rollout_leader") == 0
        bare.apply(build_run("before"))
        World(kubectl=bare, puppets=puppets, operator=leader).wait_for(
            "Ready", "True", "Running", "before"
        )

        leader.process.kill()
        renewed = lease(bare)["renewTime"]
        bare.apply(build_run("after"))
        eventually(
            lambda: bare.get("rolloutrun", "after").get("status"), "the other one does not write"
        )
        silent = parse(lease(bare)["acquireTime"]) - parse(renewed)
        assert silent.total_seconds() < TAKE_OVER_SECONDS_MAX
        World(kubectl=bare, puppets=puppets, operator=other).wait_for(
            "Ready", "True", "Running", "after"
        )


def lease(kubectl):
    return kubectl.get("lease", "rollout-operator")["spec"]


def parse(text):
    return datetime.fromisoformat(text)


def holder(kubectl):
    done = kubectl.attempt(
        "get", "lease", "rollout-operator", "-o", "jsonpath={.spec.holderIdentity}"
    )
    return done.stdout
