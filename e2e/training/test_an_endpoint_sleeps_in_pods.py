"""An endpoint in real pods that sleeps while nobody asks and wakes for who does: whoever asks meanwhile is held, and no request is lost.

The test is the autoscaler: KEDA is not there. It looks at what the holder says and writes the number of servers.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

import pytest
from asking import ask_once, build_client, read_told
from endpoints import WatchedEndpoint
from samples import build_endpoint
from watched import Stage

from cluster.errors import ClusterError
from rollout.inference.gateway.keys import KeyFile, KeyLimits

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(1800)]

KEDA = {"minReplicas": 0, "maxReplicas": 2, "keda": {"serverAddress": "http://prometheus:9090"}}
ANSWER_SECONDS = 600
TURNS = 2
"""Times that it sleeps and wakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepSeen:
    """What was seen of the endpoint while it lived."""

    asleep: list[set[str]]
    saturated: list[float]
    codes: dict[str, int]
    told: list[dict[str, Any]]
    left: set[str]


def holders(mine: WatchedEndpoint) -> list[str]:
    names = (one["metadata"]["name"] for one in mine.pods())
    return [one for one in names if one.startswith("chat-holder-")]


def read_saturation(mine: WatchedEndpoint) -> float:
    """What the holder says, through the API server; 0 while nobody answers."""
    [pod] = holders(mine)
    place = f"/api/v1/namespaces/{mine.kubectl.namespace}/pods/http:{pod}:8000/proxy/metrics"
    try:
        page = mine.kubectl.raw(place)
    except ClusterError:
        return 0.0
    found = re.search(r"^rollout_endpoint_saturation_ratio\S* (\S+)$", page, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def sleep_and_wake(mine: WatchedEndpoint) -> tuple[set[str], float]:
    """The pods while it slept, and what its holder said when somebody asked."""
    kubectl = mine.kubectl
    kubectl("scale", "rolloutendpoint/chat", "--replicas=0")
    zero = ("True", "ScaledToZero")
    mine.until(lambda: mine.condition("Ready") == zero, "an endpoint without servers")
    mine.until(lambda: len(mine.pods()) == len(holders(mine)) == 1, "the last server drained")
    names = {one["metadata"]["name"] for one in mine.pods()}
    said = mine.until(lambda: read_saturation(mine), "a request that is held")
    num = len(read_told(kubectl))
    kubectl("scale", "rolloutendpoint/chat", "--replicas=1")
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "a server again")
    mine.until(lambda: len(read_told(kubectl)) > num + 20, "answers of it")
    return names, said


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> SleepSeen:
    kubectl, made = stage.kubectl, KeyFile(tmp_path_factory.mktemp("keys"))
    key = made.create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}}
    wanted = build_endpoint(scaling=KEDA, requestSeconds=ANSWER_SECONDS)
    wanted["spec"].pop("replicas", None)
    kubectl.apply({**secret, "stringData": {"ann": key}}, wanted)
    mine = WatchedEndpoint(kubectl=kubectl)
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "a first server")
    mine.until(lambda: len(holders(mine)) == 1, "somebody who holds requests")
    url = mine.status()["url"]
    kubectl.apply(build_client(url, key, "chat", seconds=ANSWER_SECONDS))
    mine.until(lambda: len(read_told(kubectl)) > 20, "answers")
    turns = [sleep_and_wake(mine) for _ in range(TURNS)]
    codes = {"with a key": ask_once(kubectl, url, key), "without": ask_once(kubectl, url)}
    told = read_told(kubectl)
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    mine.until(lambda: not mine.names(), "everything gone")
    return SleepSeen(
        asleep=[names for names, _ in turns],
        saturated=[said for _, said in turns],
        codes=codes,
        told=told,
        left=mine.names(),
    )


def test_no_request_was_lost_through_falling_asleep_and_waking(seen: SleepSeen):
    assert [one for one in seen.told if "error" in one] == []
    assert {one["code"] for one in seen.told} == {200}


def test_all_were_answered_by_servers_whoever_they_had_come_to(seen: SleepSeen):
    [digest] = {one["digest"] for one in seen.told}
    assert digest.startswith("blake3:")


def test_while_it_slept_there_was_the_holder_and_nothing_else(seen: SleepSeen):
    assert [len(names) for names in seen.asleep] == [1] * TURNS


def test_the_holder_said_that_somebody_waits(seen: SleepSeen):
    assert all(said > 0 for said in seen.saturated)


def test_keys_are_asked_for_as_ever(seen: SleepSeen):
    assert seen.codes == {"with a key": 200, "without": 401}


def test_nothing_is_left(seen: SleepSeen):
    assert seen.left == set()
