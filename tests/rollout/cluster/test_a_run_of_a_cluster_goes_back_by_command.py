"""``rollout resume RUN --from SNAPSHOT``: what is asked of the API server, and what is refused before anything is changed."""

import sys

import pytest
from answering_api_server import api_server, said

from rollout.cli.main import main


def build_run(*, suspend=True, finished="False", **spec):
    meta = {"name": "small", "namespace": "team", "uid": "uid-1"}
    status = {"conditions": [{"type": "Finished", "status": finished}]}
    return {"metadata": meta, "spec": {"suspend": suspend, **spec}, "status": status}


def build_snapshot(*, ready="True", uid="uid-1"):
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "run": {"name": "small", "uid": uid},
    }
    return {"metadata": {"name": "good", "namespace": "team"}, "spec": {}, "status": status}


@pytest.fixture
def resume(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")

    def call(run, snapshot, *arguments):
        def answer(_method, path, _query):
            return said(200, snapshot if "rolloutsnapshots" in path else run)

        with api_server(tmp_path, answer) as (config, asked):
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setattr(sys, "argv", ["rollout", "resume", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err, asked.requests

    return call


@pytest.mark.parametrize("name", ["good", "snapshot/good"])
def test_a_suspended_run_is_resumed_from_its_own_snapshot_with_one_change(resume, name):
    before = {"object": {"uri": "s3://b/x", "digest": "blake3:" + "1" * 64}}
    code, out, _, requests = resume(
        build_run(restoreFrom=before), build_snapshot(), "small", "--from", name
    )
    assert code == 0
    assert "goes back to good" in out
    assert [method for method, *_ in requests] == ["GET", "GET", "PATCH"]
    wanted = {"snapshotRef": {"name": "good"}, "object": None, "request": None}
    assert requests[-1][3] == {"spec": {"suspend": False, "restoreFrom": wanted}}


def test_a_run_that_names_it_already_is_asked_by_a_request_of_its_own(resume):
    run = build_run(restoreFrom={"snapshotRef": {"name": "good"}, "request": "before"})
    asked = []
    for _ in range(2):
        code, _, _, requests = resume(run, build_snapshot(), "small", "--from", "good")
        assert code == 0
        asked.append(requests[-1][3]["spec"]["restoreFrom"]["request"])
    assert len({"before", *asked}) == 3
    assert all(len(one) <= 63 for one in asked)


@pytest.mark.parametrize(
    ("run", "snapshot", "words"),
    [
        (build_run(suspend=False), build_snapshot(), "rollout suspend small"),
        (build_run(finished="True"), build_snapshot(), "has ended: make another run"),
        (build_run(), build_snapshot(ready="False"), "rollout wait snapshot/good"),
        (build_run(), build_snapshot(uid="uid-2"), "goes back to its own snapshots"),
    ],
)
def test_what_would_do_nothing_or_harm_changes_nothing(resume, run, snapshot, words):
    code, _, err, requests = resume(run, snapshot, "small", "--from", "good")
    assert (code, words in err) == (2, True), err
    assert all(method == "GET" for method, *_ in requests)


def test_only_runs_go_back(resume):
    code, _, err, requests = resume(
        build_run(), build_snapshot(), "endpoint/chat", "--from", "good"
    )
    assert (code, "only runs go back" in err, requests) == (2, True, [])
