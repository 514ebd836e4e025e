"""Commands to a cluster: refusals, silence and nonsense end with one line and the documented exit code; a token is never shown."""

import json
import socket
import sys
from typing import NamedTuple

import pytest
from answering_api_server import api_server, refusal, said, write_kubeconfig

from rollout.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "a", "namespace": "team", "uid": "u-1", "generation": 1},
    "spec": {"suspend": False},
    "status": {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Running", "message": ""}],
        "progress": {"step": 7, "rewardMean": "0.25"},
        "actors": {"ready": 2},
        "learner": {"ready": 1},
    },
}
MANIFEST = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: a}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 32, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 400
"""


@pytest.fixture
def rollout(monkeypatch, capsys):
    """The command, from its arguments to its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(kubeconfig, *arguments):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr(sys, "argv", ["rollout", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Done(ended.value.code or 0, printed.out, printed.err)

    return call


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            refusal(404, 'rolloutruns "a" not found'),
            2,
            "not found in namespace team of context here",
        ),
        (refusal(403, 'User "me" cannot get resource'), 4, "you may not get rolloutrun/a"),
        (refusal(401, "Unauthorized"), 4, "you may not get"),
        (
            refusal(403, '"a" is forbidden: status unknown for quota: objects, resources: count/x'),
            4,
            "nobody has counted for it yet",
        ),
        (
            refusal(403, '"a" is forbidden: exceeded quota: objects, requested: count/x=1'),
            4,
            "ask the platform for more",
        ),
        (refusal(503, "the server is starting"), 4, "the server is starting"),
        (
            refusal(
                500, 'Internal error occurred: failed calling webhook "runs.rollout.dev": refused'
            ),
            4,
            "are its pods up? kubectl get pods -A -l app.kubernetes.io/component=webhook",
        ),
        ((500, b"<html>\x1b[31m no json </html>"), 4, "500"),
    ],
)
def test_a_refusal_names_verb_object_and_place(rollout, tmp_path, answer, code, words):
    with api_server(tmp_path, lambda *_: answer) as (kubeconfig, _):
        done = rollout(kubeconfig, "describe", "a")

    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert "secret-token" not in done.stdout + done.stderr


def test_a_cluster_that_is_away_is_named_by_its_context(rollout, tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        done = rollout(write_kubeconfig(tmp_path, held.getsockname()[1]), "get", "run/a")

    assert done.returncode == 4
    assert "context here does not answer" in done.stderr


def test_a_context_that_is_not_there_is_refused_with_those_that_are(rollout, tmp_path):
    done = rollout(write_kubeconfig(tmp_path, 1), "get", "--context", "there")

    assert done.returncode == 2
    assert "there are: here" in done.stderr


def test_runs_are_listed_over_pages(rollout, tmp_path):
    def answer(_, __, query):
        if "continue=more" in query:
            return said(
                200,
                {"items": [RUN | {"metadata": RUN["metadata"] | {"name": "b"}}], "metadata": {}},
            )
        return said(200, {"items": [RUN], "metadata": {"continue": "more"}})

    with api_server(tmp_path, answer) as (kubeconfig, _):
        done = rollout(kubeconfig, "get")
        as_json = rollout(kubeconfig, "get", "--output", "json")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "NAME",
        "READY",
        "REASON",
        "STEP",
        "REWARD",
        "ACTORS",
        "LEARNERS",
        "AGE",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert lines[1].split()[1:7] == ["True", "Running", "7", "0.25", "2", "1"]
    assert [one["metadata"]["name"] for one in json.loads(as_json.stdout)] == ["a", "b"]


def test_a_manifest_with_a_mistake_reaches_no_cluster(rollout, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(MANIFEST.replace("maxSteps", "maxStep"))

    with api_server(tmp_path, lambda *_: said(200, RUN)) as (kubeconfig, asked):
        done = rollout(kubeconfig, "submit", "-f", str(file))

    assert done.returncode == 2
    assert "maxStep" in done.stderr
    assert asked.requests == []


def test_a_name_that_is_taken_is_refused_and_nothing_is_replaced(rollout, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(MANIFEST)
    taken = refusal(409, 'rolloutruns.rollout.dev "a" already exists')

    with api_server(tmp_path, lambda *_: taken) as (kubeconfig, asked):
        done = rollout(kubeconfig, "submit", "-f", str(file), "--set", "train.maxSteps=9")

    assert done.returncode == 4
    assert "already exists" in done.stderr
    [(method, path, _, body)] = asked.requests
    assert (method, path) == ("POST", "/apis/rollout.dev/v1alpha1/namespaces/team/rolloutruns")
    assert body["spec"]["train"]["maxSteps"] == 9


def test_a_run_is_deleted_by_its_uid(rollout, tmp_path):
    with api_server(tmp_path, lambda *_: said(200, RUN)) as (kubeconfig, asked):
        done = rollout(kubeconfig, "delete", "a", "--yes")

    assert done.returncode == 0, done.stderr
    [_, (method, _, _, body)] = asked.requests
    assert method == "DELETE"
    assert body["preconditions"] == {"uid": "u-1"}


def test_what_a_server_says_is_shown_and_not_obeyed(rollout, tmp_path):
    hostile = RUN | {
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "\x1b]0;owned\x07",
                    "message": "\x1b[2J[red]x",
                }
            ]
        }
    }
    with api_server(tmp_path, lambda *_: said(200, hostile | {"items": []})) as (kubeconfig, _):
        done = rollout(kubeconfig, "describe", "a")

    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[red]" in done.stdout
