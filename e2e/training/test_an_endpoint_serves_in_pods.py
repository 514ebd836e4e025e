"""A RolloutEndpoint in real pods: served by its address, with keys; another model takes over with no request lost; one that
cannot be had is given up, and so is one that misses its bar; scaled; deleted with all that it had.

One endpoint is followed from its start to its end; each test asks for one thing that was seen of it.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from asking import ask_once, build_client, read_told
from endpoints import WatchedEndpoint
from samples import build_endpoint
from watched import Stage

from rollout.inference.gateway.keys import KeyFile, KeyLimits

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

OTHER = {"uri": "rollout://tiny-qwen2"}
CANDIDATE = {"uri": "rollout://tiny-llama"}
ASKED_MIN = 20
"""Answers of the client before and after a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the endpoint while it lived."""

    url: str
    codes: dict[str, int]
    first: str
    second: str
    told: list[dict[str, Any]]
    given_up: dict[str, Any]
    told_meanwhile: list[dict[str, Any]]
    scaled: dict[str, Any]
    refused: dict[str, Any]
    measured: dict[str, Any]
    events: set[str]
    said: str
    key: str
    left: set[str]


def build_bar(bound: str) -> dict[str, Any]:
    """A promotion that asks a candidate eight sums; its figure is held against ``bound``."""
    gate = {"metric": "accuracy", "lowerBound": bound, "action": "StopPromotion"}
    sums = {"suite": {"builtin": {"name": "arithmetic"}}, "maxPrompts": 8, "maxNewTokens": 8}
    return {"evaluations": [{**sums, "gate": gate}]}


def measure_candidate(mine: WatchedEndpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """The status when a candidate has missed its bar, and when it has passed a lower one."""
    mine.edit({"replicas": 1, "model": CANDIDATE, "promotion": build_bar("0.99")})
    missed = ("False", "EvaluationFailed")
    mine.until(lambda: mine.condition("Progressing") == missed, "a bar that is missed")
    refused = mine.status()
    mine.edit({"promotion": build_bar("0")})
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "a bar that is passed")
    return refused, mine.status()


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    kubectl, made = stage.kubectl, KeyFile(tmp_path_factory.mktemp("keys"))
    key = made.create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}}
    kubectl.apply({**secret, "stringData": {"ann": key}}, build_endpoint())
    mine = WatchedEndpoint(kubectl=kubectl)
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "a first server")
    url, first = mine.status()["url"], mine.status()["currentRevision"]
    kubectl.apply(build_client(url, key, "chat"))
    mine.until(lambda: len(read_told(kubectl)) > ASKED_MIN, "answers of the first model")
    stranger = made.create("eve", KeyLimits(), now=time.time(), expires=None)
    codes = {
        "with a key": ask_once(kubectl, url, key),
        "without": ask_once(kubectl, url),
        "with another": ask_once(kubectl, url, stranger),
    }

    mine.edit({"model": OTHER})
    mine.until(lambda: mine.status()["currentRevision"] != first, "another model that serves")
    second = mine.status()["currentRevision"]
    mine.until(lambda: f"Deployment/{first}" not in mine.names("deployments"), "the old one gone")
    mine.until(lambda: len(mine.pods()) == 1, "the old pod drained")
    num = len(read_told(kubectl))
    mine.until(lambda: len(read_told(kubectl)) > num + ASKED_MIN, "answers of the second model")
    told = read_told(kubectl)

    mine.edit({"model": {"uri": "file:///nowhere"}, "promotion": {"progressDeadlineSeconds": 15}})
    late = ("False", "ProgressDeadlineExceeded")
    mine.until(lambda: mine.condition("Progressing") == late, "a model that is nowhere")
    given_up = mine.status()
    mine.edit({"model": OTHER, "promotion": {"progressDeadlineSeconds": 600}})
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "what served before")
    kubectl("scale", "rolloutendpoint/chat", "--replicas=2")
    mine.until(lambda: mine.status().get("readyReplicas") == 2, "two servers")
    scaled = mine.status()
    meanwhile = read_told(kubectl)[len(told) :]
    refused, measured = measure_candidate(mine)

    said = kubectl.attempt("logs", "-l", mine.selector, "--all-containers", "--tail=-1").stdout
    said += json.dumps(kubectl.get("events")) + json.dumps(mine.status())
    events = kubectl.get("events")["items"]
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    mine.until(lambda: not mine.names(), "everything gone")
    return Seen(
        url=url,
        codes=codes,
        first=first,
        second=second,
        told=told,
        given_up=given_up,
        told_meanwhile=meanwhile,
        scaled=scaled,
        refused=refused,
        measured=measured,
        events={one["reason"] for one in events if one["involvedObject"]["name"] == "chat"},
        said=said,
        key=key,
        left=mine.names(),
    )


def test_whoever_has_a_key_is_answered_and_nobody_else(seen: Seen):
    assert seen.codes == {"with a key": 200, "without": 401, "with another": 401}


def test_another_model_takes_over_and_no_request_fails(seen: Seen):
    assert [one for one in seen.told if "error" in one] == []
    digests = list(dict.fromkeys(one["digest"] for one in seen.told))
    assert len(digests) == 2, "both models have answered, the second only after the first"
    assert seen.first != seen.second


def test_a_model_that_cannot_be_had_is_given_up_and_nobody_notices(seen: Seen):
    assert seen.given_up["currentRevision"] == seen.second
    conditions = {one["type"]: one for one in seen.given_up["conditions"]}
    assert conditions["Available"]["status"] == "True"
    assert "goes on serving" in conditions["Stalled"]["message"]
    assert "nowhere" in conditions["Stalled"]["message"], "the pod's own word"
    assert [one for one in seen.told_meanwhile if "error" in one] == []


def test_it_is_scaled_as_a_deployment_is(seen: Seen):
    assert (seen.scaled["replicas"], seen.scaled["readyReplicas"]) == (2, 2)
    assert seen.scaled["currentRevision"] == seen.second
    assert len(seen.scaled["revisions"]) == 3


def test_a_candidate_below_its_bar_never_serves_and_says_its_figure(seen: Seen):
    assert seen.refused["currentRevision"] == seen.second
    conditions = {one["type"]: one for one in seen.refused["conditions"]}
    assert conditions["Available"]["status"] == "True"
    assert "arithmetic: accuracy 0" in conditions["Stalled"]["message"]
    assert f"{seen.second} goes on serving" in conditions["Stalled"]["message"]


def test_with_a_bar_that_it_passes_it_serves_without_being_asked_again(seen: Seen):
    [first, *_] = [one for one in seen.measured["revisions"] if one["weight"] == 100]
    assert first["name"] == seen.measured["currentRevision"] != seen.second
    [figure] = first["measured"]
    assert (figure["name"], figure["numPrompts"], figure["passed"]) == ("arithmetic", 8, True)
    before = {one["name"]: one for one in seen.refused["revisions"]}[first["name"]]
    assert before["measuredBy"] == first["measuredBy"]


def test_events_tell_what_has_happened(seen: Seen):
    deadline, evaluation = "ProgressDeadlineExceeded", "EvaluationFailed"
    wanted = {"RevisionCreated", "RevisionServes", "Evaluating", deadline, evaluation}
    assert wanted <= seen.events


def test_the_key_is_said_nowhere(seen: Seen):
    assert seen.key[-16:] not in seen.said


def test_nothing_is_left(seen: Seen):
    assert seen.left == set()
