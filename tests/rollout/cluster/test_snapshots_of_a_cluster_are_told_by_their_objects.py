"""``rollout snapshot create|list|show|prune --cluster``: what is asked of the API server, what is told, what is refused."""

from __future__ import annotations

import json
import sys

import pytest
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main
from rollout.cluster.snapshots import RUN_CHARACTERS_MAX, build_snapshot
from rollout_api.checks import Facts, check_document
from rollout_api.names import LABEL_SCHEDULE
from rollout_api.v1alpha1.snapshot import RolloutSnapshot

PLACE = "s3://runs/team/u-1"
RUN = {"kind": "RolloutRun", "metadata": {"name": "arithmetic", "uid": "u-1"}}


def build(name, day, *, run="u-1", digit="a", state="Complete", **more):
    """A snapshot as the operator leaves it."""
    spec = {"source": {"run": {"name": "arithmetic", "uid": run}}, **more.pop("spec", {})}
    digest = digit * 64
    done = {
        "digest": f"blake3:{digest}",
        "step": day,
        "lineage": 0,
        "grade": "Exact",
        "sizeBytes": 300,
        "layers": [
            {"name": "TrainState", "sizeBytes": 200, "digest": "", "grade": "Exact"},
            {"name": "Buffer", "sizeBytes": 100, "digest": "", "grade": "Exact"},
        ],
        "location": {"object": {"uri": f"{PLACE}/snapshots/manifests/{digest}.json"}},
    }
    ready = {"type": "Ready", "status": "False", "reason": "Saving", "message": "an anchor is due"}
    conditions = [{"type": state, "status": "True"}] if state != "Saving" else [ready]
    return {
        "kind": "RolloutSnapshot",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": f"2026-01-{day:02d}T00:00:00Z",
            **more,
        },
        "spec": spec,
        "status": {"conditions": conditions, **(done if state == "Complete" else {})},
    }


FOUND = [
    build("oldest", 1, digit="1", spec={"deletionPolicy": "Delete"}),
    build("kept", 2, digit="2", spec={"description": "before the change"}),
    build("nightly", 3, digit="3", labels={LABEL_SCHEDULE: "nightly"}),
    build("plain", 4, digit="4"),
    build("newest", 5, digit="5"),
    build("of-another", 6, run="u-2", digit="6"),
    build("under-way", 7, state="Saving"),
]


@pytest.fixture
def rollout(monkeypatch, capsys, tmp_path):
    def answer(method, path, _query):
        if method == "GET" and path.endswith("/rolloutruns/arithmetic"):
            return said(200, RUN)
        if method == "GET" and path.endswith("/rolloutsnapshots"):
            return said(200, {"items": FOUND, "metadata": {}})
        if method == "POST":
            return said(201, build("arithmetic-1a2b3c", 8, state="Saving"))
        return said(200, {}) if method == "DELETE" else refusal(404, "not found")

    def call(*arguments):
        with api_server(tmp_path, answer) as (config, asked):
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setattr(sys, "argv", ["rollout", "snapshot", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err, asked.requests

    return call


def test_one_is_asked_for_of_this_very_run_and_named(rollout):
    code, out, err, requests = rollout(
        "create", "arithmetic", "--cluster", "--step", "40", "--label", "good"
    )
    assert (code, out) == (0, "snapshot/arithmetic-1a2b3c\n")
    assert "rollout wait snapshot/arithmetic-1a2b3c --for Complete" in err
    method, path, _, body = requests[-1]
    assert (method, path.endswith("/namespaces/team/rolloutsnapshots")) == ("POST", True)
    source = {"run": {"name": "arithmetic", "uid": "u-1", "step": 40}}
    assert body["spec"] == {"source": source, "description": "good"}
    assert body["metadata"]["name"].startswith("arithmetic-")


@pytest.mark.parametrize("name", ["a", "a" * 63, "a" * (RUN_CHARACTERS_MAX - 1) + "-b"])
def test_what_is_asked_for_is_a_snapshot_that_admission_takes(name):
    run = {"metadata": {"name": name, "uid": "u-1"}}
    made = build_snapshot(run, step=None, label="")
    RolloutSnapshot.model_validate(made)
    assert not list(check_document(made, Facts(platform="cluster")))
    assert made["metadata"]["name"] != build_snapshot(run, step=None, label="")["metadata"]["name"]


def test_a_list_has_the_newest_first_and_says_what_is_not_there_yet(rollout):
    rows = json.loads(rollout("list", "--cluster", "--run-id", "u-1", "--limit", "3")[1])
    assert [row["name"] for row in rows] == ["under-way", "newest", "plain"]
    first, second, _ = rows
    assert (first["state"], first["id"], first["reason"]) == ("Saving", None, "an anchor is due")
    assert second["id"] == "5" * 64
    assert (second["kinds"], second["place"]) == (["train_state", "buffer"], PLACE)
    assert second["layer_bytes"] == {"train_state": 200, "buffer": 100}
    text = rollout("list", "-n", "team", "--kind", "buffer", "--output", "text")[1]
    assert "100 bytes of buffer  before the change" in text
    assert "under-way" not in text


def test_one_is_shown_by_its_id_and_by_its_name(rollout):
    by_id, by_name = (
        json.loads(rollout("show", given, "--cluster")[1]) for given in ("5" * 64, "newest")
    )
    assert by_id == by_name
    assert (by_id["step"], by_id["grade"], by_id["run_id"]) == (5, "exact", "u-1")
    code, _, err, _ = rollout("show", "0" * 64, "--cluster")
    assert (code, f"snapshot not found: {'0' * 64}" in err) == (2, True)
    text = rollout("show", "kept", "--cluster", "--output", "text")[1]
    assert text.startswith("2" * 64)
    assert "200 bytes" in text


def test_older_ones_go_but_for_those_that_are_kept_by_label_by_schedule_or_by_another_run(rollout):
    code, out, err, requests = rollout(
        "prune", "--cluster", "--run-id", "u-1", "--keep-last", "1", "--keep-labeled"
    )
    assert code == 0
    deleted = [
        (path.rpartition("/")[2], body) for method, path, _, body in requests if method == "DELETE"
    ]
    assert [name for name, _ in deleted] == ["plain", "oldest"]
    assert deleted[0][1]["preconditions"] == {"uid": "uid-plain"}
    assert "2 removed, 2 kept; at most 300 bytes go with them" in out
    assert "deletionPolicy: Delete" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("create", "arithmetic", "--cluster", "--include", "process"), "--include and --cluster"),
        (("create", "snapshot/newest", "--cluster"), "a snapshot is of a run"),
        (("create", "unknown", "--cluster"), "rolloutrun/unknown not found"),
        (("list", "--cluster", "--object-path", "store"), "--object-path and --cluster"),
        (("list", "--cluster", "--kind", "memory"), "expected one of train_state"),
    ],
)
def test_what_cannot_be_meant_asks_for_nothing(rollout, arguments, word):
    code, _, err, requests = rollout(*arguments)
    assert (code, word in err) == (2, True), err
    assert all(method == "GET" for method, *_ in requests)
