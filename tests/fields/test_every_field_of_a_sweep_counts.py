"""A field of a sweep's spec, changed alone, changes what the operator makes, stops or says; a field of its status is said in some story."""

import asyncio
import sys
from functools import cache
from pathlib import Path

import pytest
from leaves import fields_of, find, place

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "sweep"))
sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "simulation"))

from sweep_world import RATE, TEMPLATE, World

EVALUATED = {
    **TEMPLATE,
    "evaluations": [
        {"suite": {"builtin": {"name": "arithmetic"}}, "everySteps": 20, "selects": True}
    ],
}
GRID = {
    "parameters": [{"field": RATE, "values": ["1e-5", "3e-5", "1e-4", "3e-4"]}],
    "parallelism": 3,
    "suspend": False,
    "earlyStopping": {"halving": {"firstStep": 20, "factor": 3, "minRuns": 3}},
    "objective": {"metric": "RewardMean"},
    "forks": {"max": 1},
    "search": {"grid": {}},
    "template": {"spec": EVALUATED},
}
DRAWN = {
    **GRID,
    "parameters": [{"field": RATE, "range": {"low": "1e-6", "high": "1e-4", "scale": "Linear"}}],
    "search": {"random": {"samples": 4, "seed": 0}},
}
CHANGES = {
    "spec.parameters[].field": (GRID, "train.optimizer.adamw.weightDecay"),
    "spec.parameters[].values[]": (GRID, "2e-5"),
    "spec.parameters[].range.low": (DRAWN, "1e-5"),
    "spec.parameters[].range.high": (DRAWN, "1e-3"),
    "spec.parameters[].range.scale": (DRAWN, "Log"),
    "spec.search.random.samples": (DRAWN, 5),
    "spec.search.random.seed": (DRAWN, 1),
    "spec.search.grid": (GRID, None),
    "spec.objective.metric": (GRID, "BestEvaluation"),
    "spec.forks.max": (GRID, 2),
    "spec.parallelism": (GRID, 2),
    "spec.suspend": (GRID, True),
    "spec.earlyStopping.halving.firstStep": (GRID, 30),
    "spec.earlyStopping.halving.factor": (GRID, 2),
    "spec.earlyStopping.halving.minRuns": (GRID, 4),
}
"""By path: the base, and the other value. `grid` is the default: it is left out with nothing changed."""
TEMPLATES = "spec.template.spec"
"""Fields of runs, which tests of their own look at."""


def leaves(part):
    found = [one.path for one in fields_of("RolloutSweep") if one.path.startswith(f"{part}.")]
    return [one for one in found if not one.startswith(TEMPLATES)]


async def play(spec):
    """Runs that report, lose, fail, are deleted and end: all that is said on the way, and what is made."""
    world = World(**spec)
    await world.settle()
    seen = [world.status]
    for number, reward in enumerate(("0.1", "0.6", "0.9")):
        if number < len(world.made):
            best = {"name": "step-000020", "step": 20, "value": f"0.{9 - number}"}
            world._say(number, {"progress": {"step": 21, "rewardMean": reward, "best": best}})
    await world.settle()
    seen.append(world.status)
    if "rates-002" in world.runs():
        world.set_run(2, suspended=True)
        await world.settle()
        seen.append(world.status)
        world.set_run(2, suspended=False)
    for number in (1, 2):
        world.save(number)
    await world.settle()
    made = {name: live["spec"] for name, live in world.runs().items()}
    for entry in world.status["runs"]:
        place = entry["name"].removeprefix("rates-")
        if entry["name"] not in world.runs() or entry.get("outcome"):
            continue
        if place == "003":
            world.delete(place)
        else:
            world.end(place, well=place == "002")
        await world.settle()
        seen.append(world.status)
    return [seen, made]


@cache
def base_story(name):
    return asyncio.run(play({"GRID": GRID, "DRAWN": DRAWN}[name]))


def test_every_field_has_a_change():
    assert set(leaves("spec")) == set(CHANGES)


@pytest.mark.parametrize("path", [one for one in CHANGES if one != "spec.search.grid"])
def test_a_field_that_is_changed_alone_changes_what_happens(path):
    base, value = CHANGES[path]
    assert find({"spec": base}, path) not in (None, value)
    changed = place({"spec": base}, path, value)["spec"]
    before = base_story("GRID" if base is GRID else "DRAWN")
    assert asyncio.run(play(changed)) != before


def test_a_grid_that_is_left_out_is_a_grid():
    without = {name: one for name, one in GRID.items() if name != "search"}
    assert asyncio.run(play(without)) == base_story("GRID")


def test_every_field_of_the_status_is_said():
    said = base_story("GRID")[0]
    missing = [
        path
        for path in leaves("status")
        if not any(_stands(one, path.removeprefix("status.")) for one in said)
    ]
    assert missing == []


def _stands(document, path):
    """Whether something stands at a path, in any entry of its lists."""
    head, _, rest = path.partition(".")
    name = head.removesuffix("[]")
    found = document.get(name) if isinstance(document, dict) else None
    if found is None:
        return False
    if head.endswith("[]"):
        return any(_stands(one, rest) if rest else True for one in found)
    return _stands(found, rest) if rest else True
