"""A canary in real pods: a candidate answers its share of the users and takes over; a slow one is stepped back; no answer is lost."""

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from asking import build_client, read_told
from endpoints import WatchedEndpoint
from samples import build_endpoint
from watched import Stage

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(1800)]

OTHER = {"uri": "rollout://tiny-qwen2"}
GUARD = {"minRequests": 50, "maxFirstByteRatio": "3"}
CANARY = {"canaryPercent": 50, "bakeSeconds": 240, "guard": GUARD}
"""A kubelet takes up to a minute and a half to bring what servers are told of a candidate."""
SLOW = {"requests": {"cpu": "20m"}, "limits": {"cpu": "60m"}}
LATE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySeen:
    """What was seen of two canaries."""

    first: str
    second: str
    baking: dict[str, Any]
    passed: dict[str, Any]
    refused: dict[str, Any]
    told: list[dict[str, Any]]
    left: set[str]


@pytest.fixture(scope="module")
def seen(stage: Stage) -> CanarySeen:
    kubectl = stage.kubectl
    kubectl.apply(build_endpoint(apiKeys=[]))
    mine = WatchedEndpoint(kubectl=kubectl)
    mine.until(lambda: mine.condition("Ready") == ("True", "Serving"), "a first server")
    first = mine.status()["currentRevision"]
    kubectl.apply(build_client(mine.status()["url"], "none", "chat"))
    mine.until(lambda: len(read_told(kubectl)) > 20, "answers of the first model")

    mine.edit({"model": OTHER, "promotion": CANARY})
    mine.until(lambda: mine.condition("Progressing") == ("True", "Baking"), "a canary")
    baking = mine.status()
    ready = ("True", "Serving")
    mine.until(lambda: mine.condition("Ready") == ready, "a canary that passes", LATE_SECONDS)
    passed = mine.status()

    mine.edit({"resources": SLOW})
    worse = ("False", "CanaryWorse")
    mine.until(lambda: mine.condition("Progressing") == worse, "a slow canary", LATE_SECONDS)
    refused = mine.status()
    num = len(read_told(kubectl))
    mine.until(lambda: len(read_told(kubectl)) > num + 50, "answers after it")
    told = read_told(kubectl)
    left = mine.names("services")
    kubectl("delete", "pod", "client", "--wait=false")
    kubectl("delete", "rolloutendpoint", "chat")
    return CanarySeen(
        first=first,
        second=passed["currentRevision"],
        baking=baking,
        passed=passed,
        refused=refused,
        told=told,
        left=left,
    )


def test_no_answer_was_lost_through_both(seen: CanarySeen):
    assert [one for one in seen.told if "error" in one] == []


def test_while_it_was_watched_each_user_stayed_on_one_side(seen: CanarySeen):
    digests = list(dict.fromkeys(one["digest"] for one in seen.told))
    assert len(digests) == 2
    changes = {user: _changes(seen.told, user) for user in range(40)}
    assert set(changes.values()) == {1}, "to the new model once, at the canary or at its end"
    ends = [_first_of(seen.told, user, digests[1]) for user in range(40)]
    early = sum(end < max(ends) - 200 for end in ends)
    assert 5 <= early <= 35, "a part of the users came over while it was watched"


def test_one_that_is_as_good_takes_over_with_figures_of_both(seen: CanarySeen):
    weights = {one["name"]: one["weight"] for one in seen.baking["revisions"]}
    assert weights == {seen.second: 50, seen.first: 50}
    figures = {one["name"]: one for one in seen.passed["revisions"]}[seen.second]["canary"]
    assert figures["candidate"]["requests"] >= GUARD["minRequests"]
    assert figures["serving"]["requests"] > 0
    assert float(figures["candidate"]["failedShare"]) == 0


def test_a_slow_one_goes_and_says_how_slow_it_was(seen: CanarySeen):
    assert seen.refused["currentRevision"] == seen.second
    conditions = {one["type"]: one for one in seen.refused["conditions"]}
    assert "maxFirstByteRatio 3" in conditions["Stalled"]["message"], json.dumps(conditions)
    assert conditions["Available"]["status"] == "True"


def test_nothing_of_the_trial_is_left_but_the_endpoints_address(seen: CanarySeen):
    assert seen.left == {"Service/chat-server"}


def _changes(told: list[dict[str, Any]], user: int) -> int:
    mine = [one["digest"] for one in told if one["user"] == user]
    return sum(before != after for before, after in itertools.pairwise(mine))


def _first_of(told: list[dict[str, Any]], user: int, digest: str) -> int:
    return next(n for n, one in enumerate(told) if one["user"] == user and one["digest"] == digest)
