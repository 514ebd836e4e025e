"""An endpoint that names a run, in real pods: it waits for the run, serves what it handed on to its bucket by digest, and
changes over to what another run of the name hands on; a run that is deleted takes nothing away.
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

from cluster.nodes.addons import build_volume
from rollout.inference.gateway.keys import KeyFile, KeyLimits

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

END_SECONDS = 300.0
ASKED_MIN = 10


def build_run(runtime: str, warm_steps: int) -> dict[str, Any]:
    model = {"uri": f"rollout://tiny-adder?steps={warm_steps}"}
    return build_taught_run("sft", runtime, 1, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the endpoint while runs came and went."""

    waited: tuple[str, str]
    first: dict[str, Any]
    without: dict[str, Any]
    last: dict[str, Any]
    told: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    kubectl, made = stage.kubectl, KeyFile(tmp_path_factory.mktemp("keys"))
    runtime = f"bucket-{kubectl.namespace}"
    key = made.create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}}
    shared = kubectl.get("clusterrolloutruntime", "cpu")["spec"]["modelCache"]["hostPath"]["path"]
    folder = tmp_path_factory.mktemp("second")
    folder.chmod(0o777)
    kubectl.apply(build_volume(f"{kubectl.namespace}-second", str(folder), size="10Gi"))
    with serving(stage.cluster, tmp_path_factory.mktemp("s3")) as bucket:
        kubectl.apply(bucket.runtime(runtime, Path(shared)))
        try:
            yield _follow(stage, runtime, secret, key)
        finally:
            kubectl("delete", "clusterrolloutruntime", runtime)


def _follow(stage: Stage, runtime: str, secret: dict[str, Any], key: str) -> Seen:
    kubectl = stage.kubectl
    model = {"fromRun": {"name": "sft", "snapshot": "Latest"}}
    endpoint = build_endpoint(model=model, runtimeRef={"name": runtime})
    del endpoint["spec"]["model"]["uri"]
    kubectl.apply({**secret, "stringData": {"ann": key}}, endpoint)
    mine = WatchedEndpoint(kubectl=kubectl)
    run = stage.start(build_run(runtime, 0))
    mine.until(lambda: mine.condition("Progressing") != ("", ""), "a word of the endpoint")
    waited = mine.condition("Progressing")
    run.wait_for_end(END_SECONDS)
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "what the run trained")
    first = mine.status()
    kubectl.apply(build_client(first["url"], key, "chat"))
    mine.until(lambda: len(read_told(kubectl)) > ASKED_MIN, "answers of the first model")

    kubectl("delete", "rolloutrun", "sft")
    gone = ("False", "ReferenceNotFound")
    mine.until(lambda: mine.condition("Ready") == gone, "the run is missed")
    without = mine.status()

    stage.start(build_run(runtime, 1)).wait_for_end(END_SECONDS)
    served = first["currentRevision"]
    mine.until(lambda: mine.status()["currentRevision"] != served, "what the other run trained")
    last = mine.status()
    mine.until(lambda: len(mine.pods()) == 1, "the old pod drained")
    num = len(read_told(kubectl))
    mine.until(lambda: len(read_told(kubectl)) > num + ASKED_MIN, "answers of the second model")
    told = read_told(kubectl)
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    mine.until(lambda: not mine.names(), "everything gone")
    return Seen(waited=waited, first=first, without=without, last=last, told=told)


def test_a_run_at_work_is_waited_for(seen: Seen):
    assert seen.waited in {("False", "WaitingForRun"), ("False", "ReferenceNotFound")}


def test_what_a_run_trained_is_answered_with_by_the_digest_that_stands_in_the_status(seen: Seen):
    [first] = seen.first["revisions"]
    assert seen.told[0]["digest"] == first["modelDigest"]


def test_a_run_that_is_deleted_takes_nothing_away(seen: Seen):
    assert seen.without["currentRevision"] == seen.first["currentRevision"]
    assert seen.without["readyReplicas"] == 1


def test_another_run_of_the_name_takes_over_and_no_request_fails(seen: Seen):
    assert [one for one in seen.told if "error" in one] == []
    digests = list(dict.fromkeys(one["digest"] for one in seen.told))
    wanted = [one["modelDigest"] for one in reversed(seen.last["revisions"])]
    assert digests == wanted
    assert len(digests) == 2
