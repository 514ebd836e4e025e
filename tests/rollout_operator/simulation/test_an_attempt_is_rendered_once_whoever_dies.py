"""A record that a person deletes while the one operator that remembers it dies: put back as it was, or its attempt is over.

Meanwhile a live setting is edited, the run is suspended, a suspension is taken back, or what pods are made from is edited.
"""

import random

import pytest
import simulate_operator
from model_requests import Chaos, ModelSession
from run_stories import Story
from simulate_operator import compare, play
from worlds import SPEC

from rollout_operator.run.apply import Applier

STORIES = {
    ("scale", "delete the record"): 1,
    ("delete the record", "scale"): 1,
    ("delete the record", "suspend"): 2,
    ("delete the record", "take a suspension back"): 2,
    ("delete the record", "edit at work"): 2,
}
"""Acts, and the attempt that the run ends with."""
EDITED = ("delete the record", "edit at work")


def live(monkeypatch, acts):
    """One life, without chance."""
    story = Story(seed=0, spec={**SPEC, "actors": {"replicas": 1}}, acts=acts, end="succeed")
    monkeypatch.setattr(simulate_operator, "build_story", lambda _: story)
    draw = random.Random("life")
    return play(0, Chaos(draw=draw), draw)


def live_and_die(monkeypatch, acts):
    """The same, in which the operator dies as it puts the record back."""
    answer, deaths = ModelSession._answer, []

    async def die(session, request, headers):
        gone = [one for one in session.model.log if one.after is None]
        again = request.method == "PATCH" and any(one.place == request.place for one in gone)
        if deaths or not again or request.place[0] != "configmaps":
            return await answer(session, request, headers)
        deaths.append(request)
        return await session._die(request, headers, performed=False)

    monkeypatch.setattr(ModelSession, "_answer", die)
    life = live(monkeypatch, acts)
    assert len(deaths) == 1
    return life


@pytest.mark.parametrize("acts", STORIES, ids=" and ".join)
def test_the_end_is_that_of_a_life_without_a_death(monkeypatch, acts):
    clean = live(monkeypatch, acts)
    life = compare(live_and_die(monkeypatch, acts), clean)
    assert not life.broken, life.explain()
    assert life.end["status"]["attempt"] == STORIES[acts]


def test_an_operator_that_renders_it_anew_is_caught(monkeypatch):
    async def never(*_):
        return False

    monkeypatch.setattr(Applier, "is_lost", never)
    monkeypatch.setattr(simulate_operator, "OVER_SECONDS", 120.0)
    broken = live_and_die(monkeypatch, EDITED).broken
    assert any("rendered in two ways" in one for one in broken), broken
