"""A run in order is left alone: by a resync, and by an operator that has just started."""

import pytest
from deaths import CLIENT
from operators import eventually, operating
from stage import World

from cluster.control import audit
from cluster.control.ports import find_free_port
from faults.proxy import running
from rollout_api import names
from runs import build_run

pytestmark = pytest.mark.process

RUNS = ("a", "b", "c")
APPLIED_AT_ONCE = 100
"""What one call of kubectl does in its time on a busy machine."""
MANAGERS = {names.MANAGER_CHILDREN, names.MANAGER_STATUS}
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def test_neither_a_resync_nor_a_restart_writes_anything(bare, puppets, tmp_path):
    path, log = tmp_path / "kubeconfig", tmp_path / "log"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        with operating(path, find_free_port(), log, ROLLOUT_RESYNC_SECONDS="10") as operator:
            world = World(kubectl=bare, puppets=puppets, operator=operator)
            bare.apply(*(build_run(name) for name in RUNS))
            for name in RUNS:
                world.wait_for("Ready", "True", "Running", name)
            before = at_rest(bare)
            proxy.clear()
            seen = operator.metric("rollout_reconcile_total")
            eventually(
                lambda: operator.metric("rollout_reconcile_total") >= seen + 2 * len(RUNS),
                "no resync came",
            )
            assert [record.call for record in proxy.writes()] == []
        proxy.clear()
        with operating(path, find_free_port(), log) as operator:
            eventually(
                lambda: operator.metric("rollout_reconcile_total") >= num_objects(bare),
                "the second operator did not look at every object",
            )
            assert [record.call for record in proxy.writes()] == []
        assert written_by_us(bare) == before


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize("num_runs", [20, 1000])
def test_many_runs_in_order_are_looked_at_and_not_written(
    num_runs, control_plane, bare, puppets, tmp_path
):
    """By the API server's own log. Quick: the test above, three runs by what a proxy sees."""
    if control_plane.local is None:
        pytest.skip("cannot run here: only the local provider's audit log can be read")
    log = control_plane.local.instance.audit_log
    settings = {"ROLLOUT_RESYNC_SECONDS": "10"}
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log", **settings) as operator:
        for first in range(0, num_runs, APPLIED_AT_ONCE):
            numbers = range(first, min(first + APPLIED_AT_ONCE, num_runs))
            bare.apply(*(build_run(f"run-{number}") for number in numbers))
        eventually(lambda: num_working(bare) == num_runs, "not all runs work", 3000, 2.0)
        before = at_rest(bare)
        seen, start = operator.metric("rollout_reconcile_total"), log.stat().st_size
        eventually(
            lambda: operator.metric("rollout_reconcile_total") >= seen + 2 * num_runs,
            "no resync came",
            seconds=600,
        )
        assert written_by_us(bare) == before
    calls = [call for call in audit.read(log, start) if CLIENT in call.client]
    assert [call for call in calls if call.verb in WRITES] == []


def num_working(kubectl):
    found = kubectl.get("rolloutruns")["items"]
    conditions = (one for run in found for one in run.get("status", {}).get("conditions", ()))
    return sum((one["type"], one["reason"]) == ("Ready", "Running") for one in conditions)


def num_objects(kubectl):
    """Everything in the cluster that an operator looks at when it starts."""
    kinds = "rolloutruns,rolloutruntimes,clusterrolloutruntimes,rolloutsnapshots"
    return len(kubectl.get(kinds, "--all-namespaces")["items"])


def written_by_us(kubectl):
    """What the operator owns of each run and each child, and since when: the server changes it at each of its writes.

    Not resourceVersions: Kubernetes' own controllers write the status of a StatefulSet whenever they like.
    """
    kinds = "rolloutruns,statefulsets,services,configmaps,secrets,networkpolicies"
    found = (
        kubectl.get(kinds, "-l", "rollout.dev/run", "--show-managed-fields")["items"]
        + kubectl.get("rolloutruns", "--show-managed-fields")["items"]
    )
    written = {one["metadata"]["uid"]: list(entries_of_ours(one)) for one in found}
    assert all(written.values())
    return written


def entries_of_ours(document):
    """Its `managedFields` under the operator's managers."""
    for entry in document["metadata"]["managedFields"]:
        if entry["manager"] in MANAGERS:
            yield entry["manager"], entry["operation"], entry["time"], entry["fieldsV1"]


def at_rest(kubectl):
    """What is written, once two looks three seconds apart have shown the same."""
    looks = []

    def same():
        looks.append(written_by_us(kubectl))
        return len(looks) > 1 and looks[-1] == looks[-2]

    eventually(same, "the runs do not come to rest", seconds=600, every=3.0)
    return looks[-1]
