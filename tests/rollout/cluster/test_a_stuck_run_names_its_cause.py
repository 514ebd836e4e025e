"""``rollout debug stuck`` names causes in the order in which one hides the next, each with something to try."""

from datetime import UTC, datetime, timedelta

import pytest

from rollout.cluster.objects import pod_state
from rollout.cluster.stuck import Facts, culprit, find_causes, warnings
from rollout_api.conditions import Reason

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def pod(name, role, *, waiting=None, last=None, unscheduled=None):
    state = {"waiting": waiting} if waiting else {"running": {}}
    status = {"name": "main", "ready": not waiting, "restartCount": 0, "state": state}
    if last:
        status["lastState"] = {"terminated": last}
    conditions = [{"type": "PodScheduled", "status": "False", "message": unscheduled}]
    return pod_state(
        {
            "metadata": {"name": name, "labels": {"rollout.dev/role": role}},
            "spec": {"containers": [{"name": "main"}], "nodeName": "node-1"},
            "status": {
                "phase": "Pending" if waiting else "Running",
                "containerStatuses": [status],
                "conditions": conditions if unscheduled else [],
            },
        }
    )


def facts(*pods, conditions=(), progress=None, spec=None):
    status = {"conditions": list(conditions), "progress": progress or {}}
    run = {"metadata": {"name": "a"}, "spec": spec or {}, "status": status}
    return Facts(run=run, pods=pods, events=(), now=NOW)


def says(kind, status, reason, message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message}


COORDINATOR = pod("a-coordinator-0", "coordinator")


def test_a_healthy_run_has_no_cause():
    told = (NOW - timedelta(seconds=200)).isoformat()
    healthy = facts(
        COORDINATOR,
        conditions=[says("Ready", "True", "Running")],
        progress={"updateTime": told},
    )

    assert find_causes(healthy) == ()
    assert culprit(healthy) is None


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_a_stall_comes_with_its_documented_action(reason):
    [cause] = find_causes(facts(conditions=[says("Stalled", "True", reason.value, "because")]))

    assert reason.value in cause.what
    assert "because" in cause.what
    assert cause.try_this == reason.action


@pytest.mark.parametrize(
    "reason",
    [Reason.TOO_MANY_RUNS, Reason.QUEUED, Reason.WAITING_FOR_RUN, Reason.GANG_INCOMPLETE],
)
def test_what_a_run_waits_for_is_a_cause_though_nobody_has_to_act(reason):
    waiting = [says("Reconciling", "True", reason.value, "2 of 50"), says("Stalled", "False", "x")]

    [cause] = find_causes(facts(conditions=waiting))

    assert "2 of 50" in cause.what
    assert cause.try_this == reason.action


def test_a_pod_that_no_node_takes_is_told_once_with_the_schedulers_words():
    message = "pod a-learner-0: 0/3 nodes: insufficient nvidia.com/gpu"
    sick = facts(
        COORDINATOR,
        pod("a-learner-0", "learner", unscheduled="0/3 nodes: insufficient nvidia.com/gpu"),
        conditions=[says("Reconciling", "True", "Unschedulable", message)],
    )

    [cause] = find_causes(sick)

    assert cause.what.startswith("pod a-learner-0: not scheduled: 0/3 nodes")


def test_a_run_that_is_suspended_or_complete_says_so():
    [suspended] = find_causes(facts(conditions=[says("Suspended", "True", "Suspended")]))
    [complete] = find_causes(facts(conditions=[says("Complete", "True", "Complete")]))

    assert suspended.try_this == "rollout resume a"
    assert "complete" in complete.what


def test_a_reason_of_a_newer_operator_is_told_all_the_same():
    [cause] = find_causes(facts(conditions=[says("Stalled", "True", "FromTheFuture")]))

    assert "FromTheFuture" in cause.what


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ({"waiting": {"reason": "ImagePullBackOff"}}, "image"),
        ({"waiting": {"reason": "ErrImageNeverPull"}}, "node"),
        ({"last": {"exitCode": 137, "reason": "OOMKilled"}}, "memory"),
        ({"waiting": {"reason": "CreateContainerConfigError"}}, "Secret"),
        ({"unscheduled": "0/3 nodes: insufficient nvidia.com/gpu"}, "accelerator"),
        ({"last": {"exitCode": 1, "reason": "Error"}}, "--previous"),
    ],
)
def test_what_ails_a_pod_has_its_own_advice(trouble, word):
    sick = facts(
        COORDINATOR, pod("a-actors-0", "actor", **trouble), conditions=[says("Ready", "False", "x")]
    )

    [cause] = find_causes(sick)

    assert "a-actors-0" in cause.what
    assert word in cause.try_this
    assert culprit(sick) == "a-actors-0"


def test_containers_that_are_being_made_are_no_trouble():
    young = pod("a-actors-0", "actor", waiting={"reason": "ContainerCreating"})

    assert young.trouble == ""


def test_the_worker_that_does_not_move_is_the_culprit_even_beside_others_with_trouble():
    stuck = {
        "worker": "actor-1",
        "message": "learner waits for group 7",
        "time": "2026-11-25T11:00:00Z",
    }
    told = facts(
        COORDINATOR,
        pod("a-actors-0", "actor", last={"exitCode": 1}),
        pod("a-actors-1", "actor"),
        conditions=[says("Ready", "True", "Running")],
        progress={"stuck": stuck},
    )

    assert culprit(told) == "a-actors-1"
    assert any("group 7" in cause.what for cause in find_causes(told))


def test_a_learner_that_does_not_move_is_its_first_pod():
    stuck = {"worker": "learner", "message": "", "time": "2026-11-25T11:00:00Z"}
    pods = (pod("a-learner-1", "learner"), pod("a-learner-0", "learner"))

    assert culprit(facts(*pods, progress={"stuck": stuck})) == "a-learner-0"


def test_a_coordinator_that_writes_nothing_is_named_while_the_run_goes_on():
    old = {"updateTime": (NOW - timedelta(hours=1)).isoformat()}
    running = [says("Ready", "True", "Running")]

    assert find_causes(facts(COORDINATOR, conditions=running, progress=old))
    assert not find_causes(
        facts(COORDINATOR, conditions=running, progress=old, spec={"suspend": True})
    )


def test_a_run_without_status_asks_for_its_operator():
    [cause] = find_causes(facts())

    assert "operator" in cause.try_this


def test_warnings_are_the_newest_in_order():
    events = [
        {"type": "Warning", "lastTimestamp": f"2026-11-25T10:00:{second:02d}Z"}
        for second in range(30)
    ]
    events.append({"type": "Normal", "lastTimestamp": "2026-11-25T11:00:00Z"})

    kept = warnings(list(reversed(events)))

    assert [one["lastTimestamp"][-3:-1] for one in kept] == [str(n) for n in range(20, 30)]
