"""``rollout endpoint history`` and ``rollback``: which revision is meant, what is asked of the API server, what is refused."""

import sys

import pytest
from answering_api_server import api_server, said

from rollout.cli.main import main
from rollout.cluster.objects import find_rollback
from rollout.errors import SpecError

REVISIONS = [
    {"name": "chat-c", "modelURI": "rollout://c", "ready": 0},
    {"name": "chat-b", "modelURI": "rollout://b", "servedTime": "2026-01-02T00:00:00Z"},
    {
        "name": "chat-a",
        "modelURI": "hf://o/a",
        "modelRevision": "9f",
        "modelDigest": "blake3:" + "7" * 64,
        "servedTime": "2026-01-03T00:00:00Z",
        "weight": 100,
    },
    {"name": "chat-z", "modelURI": "rollout://z", "servedTime": "2026-01-01T00:00:00Z"},
]


def build_endpoint(revisions=REVISIONS, **spec):
    meta = {"name": "chat", "namespace": "team", "uid": "u", "generation": 1}
    status = {"currentRevision": "chat-a", "revisions": revisions}
    return {"kind": "RolloutEndpoint", "metadata": meta, "spec": spec, "status": status}


@pytest.fixture
def rollout(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")

    def call(found, *arguments):
        with api_server(tmp_path, lambda *_: said(200, found)) as (config, asked):
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setattr(sys, "argv", ["rollout", "endpoint", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err, asked.requests

    return call


def test_the_one_that_served_last_before_is_gone_back_to_whatever_came_up_since(rollout):
    code, out, _, requests = rollout(build_endpoint(), "rollback", "chat")
    assert code == 0
    assert "goes back to chat-b" in out
    method, path, _, body = requests[-1]
    assert (method, body) == ("PATCH", {"spec": {"rollbackTo": "chat-b"}})
    assert path.endswith("/namespaces/team/rolloutendpoints/chat")


def test_a_revision_may_be_named_and_the_hold_let_go(rollout):
    assert rollout(build_endpoint(), "rollback", "endpoint/chat", "--to", "chat-c")[3][-1][3] == {
        "spec": {"rollbackTo": "chat-c"}
    }
    code, out, _, requests = rollout(build_endpoint(), "rollback", "chat", "--cancel")
    assert (code, requests[-1][3]) == (0, {"spec": {"rollbackTo": None}})
    assert "serves what its spec says" in out


@pytest.mark.parametrize(
    ("arguments", "said_so"),
    [
        (("chat", "--to", "chat-x"), "chat-c, chat-b, chat-a, chat-z"),
        (("chat", "--to", "chat-b", "--cancel"), "give one of them"),
        (("run/chat",), "expected the name of an endpoint"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(rollout, arguments, said_so):
    code, _, err, requests = rollout(build_endpoint(), "rollback", *arguments)
    assert (code, said_so in err) == (2, True)
    assert all(method == "GET" for method, *_ in requests)


def test_an_endpoint_that_has_served_nothing_before_is_told_so():
    with pytest.raises(SpecError, match="has served nothing before chat-a"):
        find_rollback(build_endpoint(REVISIONS[2:3]), None)


def test_history_shows_what_served_and_what_holds_it(rollout):
    code, out, *_ = rollout(build_endpoint(rollbackTo="chat-a"), "history", "chat")
    assert code == 0
    assert "hf://o/a@9f" in out
    assert "777777777777" in out
    assert "spec.rollbackTo holds it at chat-a" in out
