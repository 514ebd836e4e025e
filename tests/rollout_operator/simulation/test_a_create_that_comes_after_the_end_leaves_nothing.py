"""A create is bound to absence alone: one that is done after a finished run's time is over makes a child again, and it goes.

The replica that sent it is dead by then, whatever its clock said. One life for each kind of child.
"""

import asyncio
import random

import pytest
from model_requests import Chaos, ModelSession
from run_stories import PLACE, build_story
from simulate_operator import compare, play, undisturbed

TTL = {"ttlSecondsAfterFinished": 0}
LATE_SECONDS = 5.0
PLURALS = (
    "configmaps",
    "secrets",
    "services",
    "serviceaccounts",
    "rolebindings",
    "networkpolicies",
    "poddisruptionbudgets",
    "statefulsets",
)


def find_seed() -> int:
    """A story of a run that succeeds, and leaves nothing but its object."""
    stories = (build_story(seed) for seed in range(1000))
    return next(
        one.seed
        for one in stories
        if not one.acts and one.end == "succeed" and one.spec.get("limits") == TTL
    )


SEED = find_seed()


@pytest.fixture(scope="module")
def clean():
    return undisturbed(SEED)


def is_over(model) -> bool:
    found = model.objects[PLACE].get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Finished", "True") for one in found)


def find_left(model) -> list[str]:
    """What the run owns."""
    run = model.objects[PLACE]["metadata"]["uid"]
    return [
        "/".join(place)
        for place, live in model.objects.items()
        if any(one["uid"] == run for one in live["metadata"].get("ownerReferences") or ())
    ]


@pytest.fixture
def live_late(monkeypatch):
    """A life in which the first create of a kind is its sender's last, and is done once nothing of the run is left."""
    answer = ModelSession._answer

    async def perform_late(session, request, headers):
        while not is_over(session.model) or find_left(session.model):
            await asyncio.sleep(1.0)
        await asyncio.sleep(LATE_SECONDS)
        session._perform(request, headers)
        session.say(f"done late: {request.method} {request.path}: {find_left(session.model)}")

    def live(plural: str):
        late = []

        async def answer_late(session, request, headers):
            creates = request.method in {"POST", "PATCH"} and not request.part
            if late or not creates or request.place[:2] != (plural, "ns"):
                return await answer(session, request, headers)
            late.append(request)
            session.outlives(session._perform_late(request, headers))
            return await session._die(request, headers, performed=False)

        monkeypatch.setattr(ModelSession, "_perform_late", perform_late)
        monkeypatch.setattr(ModelSession, "_answer", answer_late)
        draw = random.Random(f"life {SEED}")
        return play(SEED, Chaos(draw=draw), draw)

    return live


@pytest.mark.parametrize("plural", PLURALS)
def test_it_goes_again_whatever_it_is(clean, live_late, plural):
    life = compare(live_late(plural), clean)
    assert not life.broken, life.explain()
    made = [words for words in life.log if "done late" in words]
    assert len(made) == 1
    assert plural in made[0].rpartition(": ")[2], made
