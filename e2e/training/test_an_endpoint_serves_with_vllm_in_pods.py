"""A RolloutEndpoint whose model a vLLM server computes, in a container beside the gateway; another revision takes over.

``test_an_endpoint_serves_in_pods.py`` guards the same path in the quick tier, with the engine that needs no vLLM.
"""

import time

import pytest
from asking import ask_once, build_client, read_told
from endpoints import WatchedEndpoint
from samples import build_endpoint
from watched import Stage

from rollout.inference.gateway.keys import KeyFile, KeyLimits

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(1500)]

START_SECONDS = 600.0
SERVING = ("True", "Serving")


def test_vllm_answers_beside_its_gateway_and_a_changed_one_takes_over_without_a_failure(
    stage: Stage, tmp_path
):
    kubectl = stage.kubectl
    key = KeyFile(tmp_path).create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}}
    engine = {"embedded": None, "vllm": {"maxModelLength": 256, "maxNumSeqs": 4}}
    kubectl.apply({**secret, "stringData": {"ann": key}}, build_endpoint(engine=engine))
    mine = WatchedEndpoint(kubectl=kubectl)
    mine.until(lambda: mine.condition("Ready") == SERVING, "a server with vLLM", START_SECONDS)
    url, first = mine.status()["url"], mine.status()["currentRevision"]
    kubectl.apply(build_client(url, key, "chat", "text"))
    mine.until(lambda: len(read_told(kubectl)) > 5, "answers")
    assert ask_once(kubectl, url) == 401
    [pod] = mine.pods()
    assert [one["name"] for one in pod["spec"]["containers"]] == ["server"]
    assert "engine" in [one["name"] for one in pod["spec"]["initContainers"]]

    mine.edit({"engine": {"vllm": {"maxNumSeqs": 8}}})
    mine.until(lambda: mine.status()["currentRevision"] != first, "another revision", START_SECONDS)
    mine.until(lambda: len(mine.pods()) == 1, "the old pod drained")
    num = len(read_told(kubectl))
    mine.until(lambda: len(read_told(kubectl)) > num + 5, "answers of the other")
    told = read_told(kubectl)
    assert [one for one in told if "error" in one] == []
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    mine.until(lambda: not mine.names(), "everything gone")
