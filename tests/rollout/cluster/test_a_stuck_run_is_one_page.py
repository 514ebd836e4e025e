"""``rollout debug stuck`` as it is read at night: how far the run is, what holds it up, what to try, and what that was read from."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main

NODES = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
WAITS = f"pod a-learner-0: {NODES}"


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
        conditions=[{"type": "PodScheduled", "status": "False", "message": NODES}],
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
    "involvedObject": {"name": "a-learner-0"},
}


def answer(method, path, query):
    if path.endswith("/rolloutruns/a"):
        return said(200, build_run())
    if path.startswith("/api/v1/") and path.endswith("/pods"):
        return said(200, {"items": PODS})
    if path.endswith("/events"):
        return said(200, {"items": [EVENT | {"lastTimestamp": ago(minutes=8)}]})
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
    assert lines[4] == ""


def test_a_log_that_may_not_be_read_is_named(rollout):
    page = rollout("debug", "stuck", "a")

    assert "last words of a-learner-0" in page
    assert "learner: could not be read: you may not get the log of pod/a-learner-0" in page


def test_events_say_how_long_ago_they_were(rollout):
    rows = [line.split() for line in rollout("events", "a").splitlines() if line]

    assert rows[1][:4] == ["8m", "Warning", "FailedScheduling", "a-learner-0"]


def test_a_cluster_without_metrics_is_said_to_have_none(rollout):
    assert "the cluster has no metrics-server" in rollout("top", "a")
