"""A run that nothing happens to is looked at when all are, and nothing is asked or written for it: counted in virtual time.

It rests while its pods are not there, while it is suspended, and while something stands in its way that only watched objects
decide. What has to be asked for is asked the seldomer the longer it has stood in the way.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from model_requests import Chaos, ModelSession
from run_stories import Story
from simulate_operator import Life, Theatre, heard
from virtual_time import run_virtual
from worlds import SPEC

from rollout_operator.run.controller import Reconciler
from rollout_operator.run.observe import Observer

SETTLED_SECONDS = 1800.0
WATCHED_SECONDS = 7200.0
LOOKS_MAX = 5
"""In two hours. All are looked at once an hour, at a drawn moment of it; a run that is blocked looks as often by itself."""
ASKS_MAX = 70
"""In two hours: every two minutes, and when all are looked at."""
RESTING: dict[str, dict[str, Any]] = {
    "waits for its pods": {"limits": {"preRunningSeconds": 31_536_000}},
    "is suspended": {"suspend": True},
    "names a runtime that is not there": {
        "runtimeRef": {"kind": "RolloutRuntime", "name": "missing"}
    },
    "is not valid": {"train": {"no": "such field"}},
}
BLOCKED = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "missing", "key": "a"}}}]}


@dataclass(slots=True)
class Counted:
    """Of two hours: looks at the run, specs that were parsed, and requests about what is in its namespace."""

    looks: int = 0
    parses: int = 0
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def rest(monkeypatch):
    """Two hours of a run of this spec, once it has settled."""
    counted = Counted()
    reconcile, resolve, request = Reconciler.reconcile, Observer._resolve, ModelSession.request

    def look(self, key):
        counted.looks += 1
        return reconcile(self, key)

    def parse(self, *arguments):
        counted.parses += 1
        return resolve(self, *arguments)

    def ask(self, method, url, **rest):
        if "/namespaces/ns/" in url:
            counted.requests.append(f"{method} {url}")
        return request(self, method, url, **rest)

    monkeypatch.setattr(Reconciler, "reconcile", look)
    monkeypatch.setattr(Observer, "_resolve", parse)
    monkeypatch.setattr(ModelSession, "request", ask)

    def live(spec: dict[str, Any]) -> Counted:
        draw = random.Random("rests")
        story = Story(seed=0, spec={**SPEC, **spec}, acts=(), end="")
        life = Life(story=story)

        async def work() -> None:
            ear.theatre = theatre = Theatre(story, Chaos(draw=draw), draw, life)
            theatre.prepare()
            theatre.open_operator(theatre.replicas[0])
            await asyncio.sleep(SETTLED_SECONDS)
            counted.looks, counted.parses, counted.requests = 0, 0, []
            await asyncio.sleep(WATCHED_SECONDS)
            ear.theatre = None
            assert not theatre.promises.broken, life.explain()

        with heard() as ear:
            run_virtual(work, draw)
        return counted

    return live


@pytest.mark.parametrize("spec", RESTING.values(), ids=RESTING)
def test_a_run_that_nothing_happens_to_is_left_alone(rest, spec):
    seen = rest(spec)
    assert 1 <= seen.looks <= LOOKS_MAX
    assert not seen.parses
    assert not seen.requests


def test_what_has_to_be_asked_for_is_asked_as_seldom_as_work_that_fails(rest):
    seen = rest(BLOCKED)
    assert 1 <= seen.looks <= ASKS_MAX
    assert not seen.parses
    assert {one.partition(" ")[0] for one in seen.requests} == {"GET"}
    assert len(seen.requests) <= ASKS_MAX
