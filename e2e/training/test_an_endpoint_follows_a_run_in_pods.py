"""An endpoint that follows a run at work, in real pods: its servers change over to what the run saves while a client goes on
asking, no pod starts anew, and a run that has ended or is deleted takes nothing away.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import build_client, read_told
from bucket import serving
from endpoints import WatchedEndpoint
from samples import build_endpoint, build_taught_run
from watched import Stage

from rollout.inference.gateway.keys import KeyFile, KeyLimits

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

TAKEN_SECONDS = 400.0
"""A status, a ConfigMap and a kubelet's round: about two minutes, on a machine that has nothing else to do."""
ASKED_MIN = 10
SAVED = {"everySteps": 20, "keepLast": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the endpoint while its run went on, ended and was deleted."""

    pods: list[set[str]]
    following: list[tuple[str, str]]
    without: dict[str, Any]
    told: list[dict[str, Any]]
    policies: dict[str, Any]


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    kubectl, made = stage.kubectl, KeyFile(tmp_path_factory.mktemp("keys"))
    runtime = f"live-{kubectl.namespace}"
    key = made.create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}}
    shared = kubectl.get("clusterrolloutruntime", "cpu")["spec"]["modelCache"]["hostPath"]["path"]
    with serving(stage.cluster, tmp_path_factory.mktemp("s3")) as bucket:
        kubectl.apply(bucket.runtime(runtime, Path(shared)))
        try:
            kubectl.apply({**secret, "stringData": {"ann": key}})
            yield _follow(stage, runtime, key)
        finally:
            kubectl("delete", "clusterrolloutruntime", runtime)


def _follow(stage: Stage, runtime: str, key: str) -> Seen:
    kubectl = stage.kubectl
    model = {"fromRun": {"name": "adder", "snapshot": "Live"}}
    endpoint = build_endpoint(model=model, runtimeRef={"name": runtime})
    del endpoint["spec"]["model"]["uri"]
    run = stage.start(build_taught_run("adder", runtime, 100_000, snapshots=SAVED))
    kubectl.apply(endpoint)
    mine = WatchedEndpoint(kubectl=kubectl)
    mine.until(
        lambda: mine.condition("Ready") == ("True", "Serving"), "a saved version", TAKEN_SECONDS
    )
    pods, following = [_uids(mine)], [mine.condition("Following")]
    kubectl.apply(build_client(mine.status()["url"], key, "chat"))

    def versions() -> set[str]:
        return {one["model"] for one in read_told(kubectl) if "model" in one}

    mine.until(lambda: len(versions()) > 1, "answers of a second version", TAKEN_SECONDS)
    policies = kubectl.get("networkpolicies", "-l", "rollout.dev/run=adder")
    pods.append(_uids(mine))

    run.patch({"suspend": True})
    mine.until(lambda: mine.condition("Following")[0] == "False", "a run that saves no more")
    following.append(mine.condition("Following"))
    kubectl("delete", "rolloutrun", "adder")
    gone = ("False", "RunGone")
    mine.until(lambda: mine.condition("Following") == gone, "the run is missed")
    num = len(read_told(kubectl))
    mine.until(lambda: len(read_told(kubectl)) > num + ASKED_MIN, "answers without the run")
    without, told = mine.status(), read_told(kubectl)
    pods.append(_uids(mine))
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    mine.until(lambda: not mine.names(), "everything gone")
    return Seen(pods=pods, following=following, without=without, told=told, policies=policies)


def _uids(mine: WatchedEndpoint) -> set[str]:
    return {one["metadata"]["uid"] for one in mine.pods()}


def test_answers_follow_the_run_by_digest_and_no_request_fails(seen: Seen):
    assert [one for one in seen.told if "error" in one] == []
    steps = [int(one["model"].removeprefix("adder@")) for one in seen.told]
    assert steps == sorted(steps), "no version comes back"
    digests = {(one["model"], one["digest"]) for one in seen.told}
    assert len(digests) == len(set(steps)) > 1, "a version has one digest"
    assert len({digest for _, digest in digests}) > 1, "the run has learned something meanwhile"


def test_one_pod_has_answered_all_the_time(seen: Seen):
    [only] = seen.pods[0]
    assert seen.pods == [{only}] * 3


def test_the_endpoint_says_whether_its_run_goes_on(seen: Seen):
    assert seen.following[0] == ("True", "Running")
    assert seen.following[1][0] == "False"
    assert seen.without["readyReplicas"] == 1


def test_no_policy_of_the_run_lets_servers_in(seen: Seen):
    assert seen.policies["items"]
    assert "rollout.dev/endpoint" not in str(seen.policies)
