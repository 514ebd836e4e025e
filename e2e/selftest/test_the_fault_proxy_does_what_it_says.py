"""Each fault, seen by a real client in front of a real API server.

Quick: the files of operator/ that ask for a fault also ask whether it was met, first of all test_every_call_may_fail.py.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.kubectl import Kubectl
from faults.kinds import (
    Answer,
    Cut,
    CutWatch,
    Delay,
    ExpireWatch,
    Hang,
    KillProcess,
    LagWatch,
    LoseAnswer,
    StallWatch,
)
from faults.proxy import Proxy, running
from faults.rules import Rule
from waiting import wait_until

pytestmark = [pytest.mark.control_plane, pytest.mark.slow, pytest.mark.kit]

CREATES = {"create"}
QUICK = "--request-timeout=2s"


@pytest.fixture(scope="module")
def shared_proxy(fake_cluster) -> Iterator[Proxy]:
    with running(fake_cluster.kubectl.kubeconfig) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    shared_proxy.clear()
    yield shared_proxy
    shared_proxy.clear()


@pytest.fixture
def client(proxy: Proxy, fake: Kubectl, tmp_path: Path) -> Kubectl:
    """kubectl through the proxy; `fake` is the same without it."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(proxy.kubeconfig())
    return replace(fake, kubeconfig=kubeconfig)


def create(client: Kubectl, name: str) -> subprocess.CompletedProcess[str]:
    return client.attempt("create", "configmap", name, QUICK)


def names(kubectl: Kubectl) -> set[str]:
    return {item["metadata"]["name"] for item in kubectl.get("configmaps")["items"]}


def watch(client: Kubectl, *more: str) -> subprocess.Popen[str]:
    command = [client.binary, "--kubeconfig", str(client.kubeconfig), "-n", client.namespace]
    command += ["get", "configmaps", "--watch", "-o", "name", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_without_a_rule_everything_goes_through(client: Kubectl, proxy: Proxy):
    assert create(client, "plain").returncode == 0
    assert "plain" in names(client)
    written = [record.call for record in proxy.writes()]
    assert [(call.verb, call.resource, call.namespace) for call in written] == [
        ("create", "configmaps", client.namespace)
    ]


@pytest.mark.parametrize(
    ("status", "word"),
    [(403, "Forbidden"), (409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")],
)
def test_an_answer_is_seen_and_the_call_is_not_made(
    client: Kubectl, fake: Kubectl, proxy: Proxy, status: int, word: str
):
    proxy.inject(Rule(verbs=CREATES, fault=Answer(status=status)))
    refused = create(client, "refused")
    assert refused.returncode != 0
    assert word in refused.stderr or "injected by the test" in refused.stderr
    assert "refused" not in names(fake)


def test_only_the_nth_call_is_hit_and_only_as_often_as_said(client: Kubectl, proxy: Proxy):
    rule = proxy.inject(
        Rule(verbs=CREATES, resources={"configmaps"}, first=2, times=2, fault=Answer(status=409))
    )
    ended = [create(client, f"n{number}").returncode == 0 for number in range(4)]
    assert ended == [True, False, False, True]
    assert proxy.matched(rule) == 4


def test_a_client_waits_as_long_as_it_is_told_to(client: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs=CREATES, fault=Answer(status=429, retry_after_seconds=1)))
    assert client.attempt("create", "configmap", "later").returncode == 0
    first, second = proxy.writes()
    assert (first.status, second.status) == (429, 201)
    assert second.arrived - first.ended >= 0.9


def test_a_cut_call_is_not_made(client: Kubectl, fake: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs=CREATES, times=None, fault=Cut()))
    assert create(client, "cut").returncode != 0
    assert "cut" not in names(fake)


def test_a_lost_answer_is_of_a_call_that_was_made(client: Kubectl, fake: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs=CREATES, fault=LoseAnswer()))
    assert create(client, "made").returncode != 0
    assert "made" in names(fake)


def test_a_hanging_call_ends_with_the_clients_patience(
    client: Kubectl, fake: Kubectl, proxy: Proxy
):
    proxy.inject(Rule(verbs=CREATES, times=None, fault=Hang()))
    assert create(client, "hung").returncode != 0
    assert "hung" not in names(fake)


def test_a_delayed_call_is_made_late(client: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs=CREATES, fault=Delay(seconds=0.5)))
    assert create(client, "late").returncode == 0
    (record,) = proxy.writes()
    assert record.ended - record.arrived >= 0.5


@pytest.mark.parametrize("performed", [False, True])
def test_a_process_dies_at_the_call_before_or_after_it_is_made(
    client: Kubectl, fake: Kubectl, proxy: Proxy, performed
):
    victim = subprocess.Popen(["sleep", "3600"])
    proxy.inject(Rule(verbs=CREATES, fault=KillProcess(pid=victim.pid, performed=performed)))
    create(client, "fatal")
    assert victim.wait(timeout=30) == -9
    assert ("fatal" in names(fake)) is performed


def test_a_cut_watch_ends_after_its_events(client: Kubectl, fake: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs={"watch"}, fault=CutWatch(after_events=1)))
    watcher = watch(client)
    assert "kube-root-ca" in watcher.stdout.readline()
    create(fake, "seen")
    assert "seen" in watcher.stdout.readline()
    watcher.wait(timeout=60)


def test_a_stalled_watch_stays_open_and_silent(client: Kubectl, fake: Kubectl, proxy: Proxy):
    rule = proxy.inject(Rule(verbs={"watch"}, fault=StallWatch()))
    watcher = watch(client)
    assert "kube-root-ca" in watcher.stdout.readline()
    wait_until(lambda: proxy.matched(rule) == 1, "the rule is met")
    create(fake, "unseen")
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(timeout=2)  # short: it never ends
    watcher.kill()
    assert watcher.communicate()[0] == ""


def test_an_expired_watch_says_gone(client: Kubectl, proxy: Proxy):
    proxy.inject(Rule(verbs={"watch"}, fault=ExpireWatch(after_events=1)))
    path = f"/api/v1/namespaces/{client.namespace}/configmaps?watch=true"
    first, last = map(json.loads, client("get", "--raw", path).splitlines())
    assert first["type"] == "ADDED"
    assert (last["type"], last["object"]["code"]) == ("ERROR", 410)


def test_a_lagging_watch_brings_events_late(client: Kubectl, fake: Kubectl, proxy: Proxy):
    rule = proxy.inject(Rule(verbs={"watch"}, fault=LagWatch(seconds=1.0)))
    watcher = watch(client)
    assert "kube-root-ca" in watcher.stdout.readline()
    wait_until(lambda: proxy.matched(rule) == 1, "the rule is met")
    start = time.monotonic()
    create(fake, "stale")
    assert "stale" in watcher.stdout.readline()
    assert time.monotonic() - start >= 0.9
    watcher.kill()
    watcher.wait()


def test_a_client_with_a_token_keeps_its_own_rights(proxy: Proxy, fake: Kubectl, tmp_path: Path):
    token = fake("create", "token", "default").strip()
    kubeconfig = tmp_path / "account"
    kubeconfig.write_text(proxy.kubeconfig(token))
    account = replace(fake, kubeconfig=kubeconfig)
    me = json.loads(account("auth", "whoami", "-o", "json"))
    assert me["status"]["userInfo"]["username"].endswith(f"{fake.namespace}:default")
    assert "forbidden" in account.attempt("get", "configmaps").stderr
