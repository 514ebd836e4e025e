"""Two replicas, one Lease: when the writer is killed or frozen the other writes, and nothing is made twice."""

import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from operators import Operator, eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.kinds import Hang
from faults.proxy import Proxy, running
from faults.rules import Rule
from runs import build_run
from waiting import Pace

pytestmark = pytest.mark.process

TAKE_OVER_SECONDS_MAX = 20.0  # short: a promise, stretched on a busy machine
READY_SECONDS_MAX = 180.0
READY_SECONDS_MAX_SLOW = 600.0
IN_FLIGHT_MAX = 1
"""A process may be stopped between its last look at the clock and its socket."""
RUNS = 10
RUNS_SLOW = 50
CHILDREN = {
    "statefulsets": 3,
    "services": 3,
    "rolebindings": 1,
    "poddisruptionbudgets": 2,
    "secrets": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of two operators, with a proxy of its own that knows what it writes."""

    name: str
    operator: Operator
    proxy: Proxy

    def writes(self):
        """Writes but those of the Lease."""
        return [one for one in self.proxy.writes() if one.call.resource != "leases"]


@pytest.fixture
def pair(bare, tmp_path):
    """The leader and the other one."""
    with ExitStack() as stack:
        found = [replica(stack, bare, tmp_path, name) for name in ("first", "second")]
        eventually(lambda: holder(bare), "nobody took the Lease")
        found.sort(key=lambda one: one.name != holder(bare))
        leader = found[0].operator
        eventually(lambda: leader.metric("rollout_leader") == 1, "the holder does not lead")
        assert found[1].operator.metric("rollout_leader") == 0
        yield found


def replica(stack, kubectl, folder, name):
    proxy = stack.enter_context(running(kubectl.kubeconfig))
    path = folder / name
    path.write_text(proxy.kubeconfig())
    settings = {
        "ROLLOUT_LEADER_ELECTION": "true",
        "ROLLOUT_OPERATOR_NAMESPACE": kubectl.namespace,
        "ROLLOUT_IDENTITY": name,
    }
    opened = operating(path, find_free_port(), folder / f"{name}.log", **settings)
    return Replica(name=name, operator=stack.enter_context(opened), proxy=proxy)


def load(kubectl, leader, count):
    """Many runs at once, of which the leader has begun some."""
    kubectl.apply(*(build_run(f"r{number}") for number in range(count)))
    eventually(lambda: len(leader.writes()) > 3 * count, "the leader does not work", every=0.02)


def all_are_made_once(kubectl, puppets, count):
    def is_ready():
        found = kubectl.get("rolloutruns")["items"]
        conditions = [one.get("status", {}).get("conditions", ()) for one in found]
        ready = [c for cs in conditions for c in cs if c["type"] == "Ready"]
        return sum(c["status"] == "True" for c in ready) == count

    seconds = READY_SECONDS_MAX_SLOW if count >= RUNS_SLOW else READY_SECONDS_MAX
    eventually(is_ready, "not every run came up", seconds=seconds, every=1.0)
    for kind, each in CHILDREN.items():
        found = kubectl.get(kind, "-l", "rollout.dev/run")["items"]
        assert len(found) == each * count, kind
    records = kubectl.get("configmaps", "-l", "rollout.dev/attempt")["items"]
    assert len(records) == count


def the_leader_is_killed(pair, kubectl, puppets, count):
    leader, other = pair
    load(kubectl, leader, count)
    with Pace() as pace:
        leader.operator.process.kill()
        killed = time.monotonic()
        eventually(other.writes, "the other one does not write", every=0.05)
    assert other.writes()[0].arrived - killed < pace.stretch(TAKE_OVER_SECONDS_MAX)
    all_are_made_once(kubectl, puppets, count)


@pytest.mark.slow
def test_the_leader_is_killed_under_load(pair, bare, puppets):
    """Quick: a frozen leader, below, and tests/rollout_operator/kube/test_only_the_holder_of_the_lease_writes.py."""
    the_leader_is_killed(pair, bare, puppets, RUNS)


@pytest.mark.slow
def test_the_leader_is_killed_under_more_load(pair, bare, puppets):
    the_leader_is_killed(pair, bare, puppets, RUNS_SLOW)


def test_a_frozen_leader_that_wakes_up_begins_no_write(pair, bare, puppets):
    leader, other = pair
    load(bare, leader, RUNS)
    leader.operator.process.send_signal(signal.SIGSTOP)
    try:
        with Pace() as pace:
            frozen = time.monotonic()
            eventually(other.writes, "the other one does not write", every=0.05)
        assert other.writes()[0].arrived - frozen < pace.stretch(TAKE_OVER_SECONDS_MAX)
        woken = time.monotonic()
    finally:
        leader.operator.process.send_signal(signal.SIGCONT)
    bare.apply(build_run("later"))
    World(kubectl=bare, puppets=puppets, operator=other.operator).wait_for(
        "Ready", "True", "Running", "later"
    )
    late = [one.call for one in leader.writes() if one.arrived > woken]
    assert len(late) <= IN_FLIGHT_MAX, late
    assert leader.operator.metric("rollout_leader") == 0
    assert holder(bare) == other.name
    all_are_made_once(bare, puppets, RUNS + 1)


def test_a_leader_whose_lease_calls_hang_once_stays_the_leader(pair, bare):
    leader, _ = pair
    before = lease(bare)["leaseTransitions"]
    rule = leader.proxy.inject(Rule(resources={"leases"}, fault=Hang()))
    eventually(lambda: leader.proxy.matched(rule) > 3, "the Lease is not renewed any more")
    assert holder(bare) == leader.name
    assert lease(bare)["leaseTransitions"] == before


def lease(kubectl):
    return kubectl.get("lease", "rollout-operator")["spec"]


def holder(kubectl):
    """Who leads; empty while there is no Lease."""
    found = kubectl.get("leases", "--field-selector=metadata.name=rollout-operator")["items"]
    return found[0]["spec"].get("holderIdentity", "") if found else ""
