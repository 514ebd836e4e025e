"""Whenever the operator dies, and whatever a stale look shows it, the same world comes of it."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SPEC, World

TWO = {**SPEC, "learner": {"nodes": 2}, "actors": {"replicas": 3}}


def final(world):
    status = {k: v for k, v in world.status.items() if k not in ("startTime", "activeSeconds")}
    conditions = [
        {k: v for k, v in one.items() if k != "lastTransitionTime"}
        for one in status.pop("conditions")
    ]
    return world.replicas(), sorted(world.pods), list(world.records), status, conditions


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(0, 2**16))
def test_lost_status_writes_change_nothing_in_the_end(written, seed):
    smooth = World(spec=TWO)
    smooth.settle(20)

    rough, noise = World(spec=TWO), random.Random(seed)
    for status in written:
        rough.tick(status=status, follow=noise.random() < 0.7)
    rough.settle(20)

    assert final(rough) == final(smooth)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["crash", "lose", "suspend", "scale", "tick"]), max_size=8))
def test_whatever_happens_a_second_look_at_the_same_world_writes_nothing(events):
    world = World(spec=TWO)
    world.settle()
    for event in events:
        if event == "crash" and "run-learner-0" in world.pods:
            world.crash("run-learner-0", 1)
        elif event == "lose" and world.pods:
            world.lose(min(world.pods))
        elif event == "suspend":
            world.change(suspend=not world.spec.get("suspend", False))
        elif event == "scale":
            world.change(actors={"replicas": world.generation % 4})
        world.tick()
    for _ in range(60):
        world.tick(10)
    writes = world.writes
    for _ in range(3):
        world.tick(0)
    assert world.writes == writes
