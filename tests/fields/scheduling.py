"""Which snapshots a run has made by itself, and deleted, over days and steps, a suspension and its end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from operating import World


def observe_schedules(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """What was ordered, what is left, and what the status says, after each of a few hours."""
    del runtime
    world = World(spec=dict(run["spec"]))
    world.settle(4)
    seen, orders = [], []
    for number in range(1, 12):
        measured = 40 * (number // 2)
        best = {"name": f"step-{measured:06d}", "step": measured}
        world.anchor(40 * number, best=best)
        world.now += timedelta(hours=9, minutes=47)
        plan = world.tick()
        orders += [(one.name, one.description, one.deadline_seconds) for one in plan.makes]
        world.finish()
        world.settle(2)
        seen.append((sorted(world.snapshots), world.status.get("schedules")))
    seen += [_goes(world), sorted(world.snapshots)]
    return seen, orders


def _goes(world: World) -> Any:
    """It is suspended, goes on and ends; what it makes by itself is durable at once."""
    for change in ({"suspend": True}, {"suspend": False}):
        world.change(**change)
        for _ in range(60):
            world.tick(5)
            world.finish()
    world.anchor(900, outcome={"kind": "Succeeded", "reason": "Done", "message": "m"})
    for _ in range(6):
        world.tick()
        world.finish()
    return world.status.get("schedules")
