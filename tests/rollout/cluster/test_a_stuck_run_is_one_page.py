"""``rollout debug stuck`` as it is read at night: how far the run is, what holds it up, what to try, and what that was read from."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main

NODES = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TRIED = f"{NODES} no new claims to deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found."
WAITS = f"pod a-learner-0: {TRIED}"


def ago(**how):
    return (datetime.now(UTC) - timedelta(**how)).strftime("%Y-%m-%dT%H:%M:%SZ")


def says(kind, status, reason, message):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def build_run():
    conditions = [
        says("Ready", "False", "Unschedulable", WAITS),
        says("Reconciling", "True", "Unschedulable", WAITS),
        says("ActorsReady", "True", "ActorsReady", "2 of 2 actors are ready"),
    ]
    progress = {"step": 120, "maxSteps": 400, "rewardMean": "0.53", "updateTime": ago(minutes=9)}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "a", "namespace": "team", "uid": "u-1", "generation": 1},
        "spec": {},
        "status": {"observedGeneration": 1, "conditions": conditions, "progress": progress},
    }


def build_pod(name, role, **status):
    return {
        "metadata": {"name": name, "labels": {"rollout.dev/role": role}},
        "spec": {"containers": [{"name": role}]},
        "status": status,
    }


PODS = [
    build_pod(
        "a-learner-0",
        "learner",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "message": TRIED}],
    ),
    build_pod(
        "a-actors-0",
        "actor",
        phase="Running",
        containerStatuses=[
            {"name": "actor", "ready": True, "restartCount": 0, "state": {"running": {}}}
        ],
    ),
]
EVENT = {
    "type": "Warning",
    "reason": "FailedScheduling",
    "message": NODES,
    "involvedObject": {"kind": "Pod", "name": "a-learner-0"},
}
STARTED = {
    "type": "Normal",
    "reason": "Starting",
    "message": "run attempt 1 starts",
    "involvedObject": {"kind": "RolloutRun", "name": "a"},
}
NO_PODS = {
    "type": "Normal",
    "reason": "NoPods",
    "message": "No matching pods found",
    "involvedObject": {"kind": "PodDisruptionBudget", "name": "a-actors"},
}


def answer(method, path, query):
    if path.endswith("/rolloutruns/a"):
        return said(200, build_run())
    if path.startswith("/api/v1/") and path.endswith("/pods"):
        return said(200, {"items": PODS})
    if path.endswith("/events"):
        first = {"eventTime": ago(minutes=20).replace("Z", ".000001Z"), "count": 3}
        told = [
            EVENT | {"lastTimestamp": ago(minutes=8)},
            STARTED | {"lastTimestamp": ago(minutes=21)},
            NO_PODS | {"lastTimestamp": ago(minutes=21)},
            EVENT | first,
        ]
        return said(200, {"items": told})
    if path.endswith("/log"):
        return refusal(403, "pods/log is forbidden")
    return refusal(404, "404 page not found")


@pytest.fixture
def rollout(monkeypatch, capsys, tmp_path):
    """The command against that cluster, and what it printed."""
    monkeypatch.setenv("COLUMNS", "150")

    def call(*arguments):
        with api_server(tmp_path, answer) as (kubeconfig, _):
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            monkeypatch.setattr(sys, "argv", ["rollout", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
        return capsys.readouterr().out

    return call


def test_the_page_begins_with_place_progress_and_what_to_try(rollout):
    lines = rollout("debug", "stuck", "a").splitlines()

    assert lines[0] == "rolloutrun/a in team (here)"
    assert "step 120, maxSteps 400, rewardMean 0.53, written 9m ago" in lines[1]
    assert lines[2] == f"- pod a-learner-0: not scheduled: {NODES}"
    assert lines[3].startswith("  try: no node has room")
    assert "`rollout scale a N`" in lines[3]
    assert lines[4] == ""


def test_a_log_that_may_not_be_read_is_named(rollout):
    page = rollout("debug", "stuck", "a")

    assert "last words of a-learner-0" in page
    assert "learner: could not be read: you may not get the log of pod/a-learner-0" in page


def test_what_one_condition_has_said_another_does_not_repeat(rollout):
    rows = {line.split()[0]: line for line in rollout("describe", "a").splitlines() if line}

    assert NODES in rows["Ready"]
    assert rows["Reconciling"].rstrip().endswith("(as Ready)")


def test_events_say_how_long_ago_they_were_and_how_often(rollout):
    _, started, failed = rollout("events", "a").splitlines()

    assert started.split()[:3] == ["21m", "Normal", "Starting"]
    assert failed.split()[:5] == ["8m", "x4", "Warning", "FailedScheduling", "a-learner-0"]


def test_a_cluster_without_metrics_is_said_to_have_none(rollout):
    assert "the cluster has no metrics-server" in rollout("top", "a")
