"""``rollout describe``, ``events``, ``top``, ``wait``, ``suspend`` and ``resume`` take a sweep, and tell of its runs."""

from __future__ import annotations

import json
import sys

import pytest
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main
from rollout.cluster.sweeps import (
    USAGE_RUNS_MAX,
    parameter_names,
    run_columns,
    select_swept_pods,
    sweep_rows,
)

RUNS = [
    {"name": "rates-000", "values": ["1e-5", "0"], "uid": "u0", "outcome": "Stopped", "step": 21},
    {"name": "rates-001", "values": ["3e-5", "0"], "uid": "u1", "step": 40, "value": "0.75"},
    {"name": "rates-002", "values": ["1e-5", "1"], "uid": "u2", "suspended": True},
    {"name": "rates-003", "values": ["3e-5", "1"]},
    {
        "name": "rates-f001",
        "values": ["1e-5", "0"],
        "uid": "u4",
        "forkedFrom": {"name": "rates-001", "step": 22},
    },
]
RUNS[0]["message"] = "at step 20 it was number 3 of 3, of which 1 go on"
SWEEP = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutSweep",
    "metadata": {"name": "rates", "namespace": "team", "uid": "s", "generation": 2},
    "spec": {"parameters": [{"field": "train.optimizer.adamw.learningRate"}, {"field": "seed"}]},
    "status": {
        "observedGeneration": 2,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Running", "message": "m"}],
        "runs": RUNS,
    },
}


def event(kind, name, reason):
    about = {"kind": kind, "name": name}
    return {"involvedObject": about, "reason": reason, "lastTimestamp": "2026-01-01T00:00:00Z"}


EVENTS = [
    event("RolloutSweep", "rates", "RunStopped"),
    event("RolloutRun", "rates-001", "Running"),
    event("RolloutRun", "rates", "OfARunOfThatName"),
    event("Pod", "rates-001", "OfAPodOfThatName"),
]


def answer(method, path, _query):
    if path.endswith("/rolloutsweeps/rates"):
        return said(200, SWEEP)
    if path.endswith("/events"):
        return said(200, {"items": EVENTS, "metadata": {}})
    if path.endswith("/pods"):
        return said(200, {"items": [], "metadata": {}})
    return refusal(404, "not found")


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Types a command; gives its exit code, what it printed and what was asked."""

    def run(*words):
        with api_server(tmp_path, answer) as (config, asked):
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setenv("COLUMNS", "200")
            monkeypatch.setattr(sys, "argv", ["rollout", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out + told.err, asked.requests

    return run


def test_rows_have_settings_state_value_and_what_a_fork_began_from():
    assert parameter_names(SWEEP) == ("learningRate", "seed")
    assert [one.state for one in sweep_rows(SWEEP)] == [
        "Stopped",
        "Running",
        "Suspended",
        "Waiting",
        "Running",
    ]
    assert sweep_rows(SWEEP)[1].value == 0.75
    assert sweep_rows(SWEEP)[4].forked_from == "rates-001"


def test_two_fields_that_end_alike_are_told_apart():
    fields = ["train.rewards[0].weight", "train.rewards[1].weight", "seed"]
    sweep = {"spec": {"parameters": [{"field": one} for one in fields]}}
    assert parameter_names(sweep) == (*fields[:2], "seed")


@pytest.mark.parametrize("status", [{}, {"runs": None}, {"runs": [{}]}])
def test_a_status_that_says_little_is_no_trouble(status):
    rows = sweep_rows({**SWEEP, "status": status})
    assert [len(one.values) for one in rows] == [2] * len(rows)
    assert len(run_columns(SWEEP)) == 8


def test_pods_are_asked_for_of_so_many_runs_only():
    many = [{"name": f"r-{n}", "values": [], "uid": f"u{n}"} for n in range(200)]
    rows = sweep_rows({**SWEEP, "status": {"runs": many}})
    assert select_swept_pods(rows).count(",") == USAGE_RUNS_MAX - 1
    assert select_swept_pods([]) == ""


def test_describe_has_the_table_of_its_runs(command):
    code, told, _ = command("describe", "sweep/rates")
    assert code == 0
    for word in ("learningRate", "rates-f001", "Suspended", "number 3 of 3", "RunStopped"):
        assert word in told


def test_events_are_those_of_the_sweep_and_of_its_runs_and_of_no_namesake(command):
    code, told, _ = command("events", "sweep/rates")
    assert code == 0
    assert "RunStopped" in told
    assert "Running" in told
    assert "OfA" not in told


def test_top_asks_for_the_pods_of_runs_at_work(command):
    code, told, asked = command("top", "sweep/rates", "--output", "json")
    assert code == 0
    assert [one["name"] for one in json.loads(told)["runs"]] == [one["name"] for one in RUNS]
    query = next(one[2] for one in asked if one[1].startswith("/apis/metrics.k8s.io"))
    assert "u1%2Cu4" in query


def test_wait_tells_what_a_sweep_says(command):
    code, told, _ = command("wait", "sweep/rates", "--for", "Ready")
    assert code == 0
    assert "Ready=True (Running): m" in told


@pytest.mark.parametrize(("word", "wanted"), [("suspend", True), ("resume", False)])
def test_a_sweep_is_suspended_and_resumed(command, word, wanted):
    code, told, asked = command(word, "sweep/rates")
    assert code == 0
    patch = next(one for one in asked if one[0] == "PATCH")
    assert patch[1].endswith("/namespaces/team/rolloutsweeps/rates")
    assert patch[3] == {"spec": {"suspend": wanted}}
    assert "rollout wait sweep/rates --for " in told


def test_what_has_no_suspension_is_refused_by_name(command):
    code, told, asked = command("suspend", "snapshot/best")
    assert code == 2
    assert "only runs and sweeps can be suspended and resumed" in told
    assert asked == []
