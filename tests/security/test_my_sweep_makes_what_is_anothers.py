"""The attacker writes a sweep, its status or its runs' status, and wants the operator to make, change or believe what is not the sweep's."""

import copy
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "sweep"))
sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "simulation"))

from sweep_world import HALVED, PLACE, RATE, World

from rollout_api.v1alpha1.sweep import RolloutSweep, SweepStatus
from rollout_operator.errors import ChildRefused
from rollout_operator.sweep.model import ForkOrder, RunOrder, SweepSeen
from rollout_operator.sweep.render import build_run, build_snapshot, check_made, owner_reference
from rollout_operator.webhook.review import review


def seen():
    document = World().model.get(PLACE)
    sweep = RolloutSweep.model_validate({k: v for k, v in document.items() if k != "status"})
    return SweepSeen(
        name="rates",
        namespace="ns",
        uid="uid-0001",
        generation=1,
        spec=sweep.spec,
        template=document["spec"]["template"]["spec"],
        status=SweepStatus(),
    )


MINE = build_run(seen(), RunOrder(name="rates-000", values=("1e-5",)))
FORGED = {
    "kind": {"kind": "RolloutRuntime"},
    "group": {"apiVersion": "v1"},
    "namespace": {"metadata": {**MINE["metadata"], "namespace": "kube-system"}},
    "name": {"metadata": {**MINE["metadata"], "name": "another"}},
    "number": {"metadata": {**MINE["metadata"], "name": "rates-²²²"}},
    "owner": {
        "metadata": {**MINE["metadata"], "ownerReferences": [owner_reference("rates", "uid-0002")]}
    },
    "finalizer": {"metadata": {**MINE["metadata"], "finalizers": ["mine/stays"]}},
    "annotation": {"metadata": {**MINE["metadata"], "annotations": {"a": "b"}}},
    "label": {"metadata": {**MINE["metadata"], "labels": {"rollout.dev/run-uid": "u"}}},
}


SAVED = build_snapshot(seen(), ForkOrder(name="rates-f001", run="rates-000", run_uid="u"))


def test_a_run_of_the_sweep_and_a_snapshot_of_a_fork_leave():
    check_made(MINE, seen())
    check_made(SAVED, seen())


def test_a_snapshot_with_the_name_of_a_run_that_is_no_fork_does_not_leave():
    forged = {**SAVED, "metadata": {**SAVED["metadata"], "name": "rates-001"}}
    with pytest.raises(ChildRefused):
        check_made(forged, seen())


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_what_is_no_run_of_the_sweep_does_not_leave(change):
    with pytest.raises(ChildRefused):
        check_made({**copy.deepcopy(MINE), **change}, seen())


@pytest.mark.parametrize(
    "runs",
    [
        [{"name": "another", "values": ["1e-5"]}],
        [{"name": "rates-000", "values": ["1e-5"], "uid": "u", "outcome": "Stopped"}],
        [{"name": "rates-000", "values": ["../../x"]}] * 3,
    ],
)
async def test_a_status_that_names_runs_of_others_stops_and_makes_none_of_them(runs):
    world = World(**HALVED)
    world.put("another")
    world.put("rates-0001")
    live = world.model.get(PLACE)
    live["status"] = {"runs": runs}
    world.model.replace("mallory", PLACE, live)
    await world.settle()
    assert sorted(world.made) == ["rates-000", "rates-001", "rates-002"]
    assert world.runs()["another"]["spec"] == {}


async def test_a_run_of_another_namespace_is_not_the_sweeps():
    world = World()
    sweep = world.model.get(PLACE)["metadata"]
    meta = {
        "name": "rates-000",
        "namespace": "other",
        "ownerReferences": [owner_reference("rates", sweep["uid"])],
    }
    body = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": meta,
        "spec": {},
    }
    world.model.create("mallory", ("rolloutruns", "other", "rates-000"), body)
    await world.settle()
    assert "rates-000" in world.made


async def test_words_of_a_run_are_shown_and_not_obeyed():
    world = World()
    await world.settle()
    for number in range(3):
        head = {"status": "True", "reason": "Failed", "message": "\x1b[2J" + "x" * 100_000}
        conditions = [{"type": one, **head} for one in ("Failed", "Finished")]
        world._say(number, {"conditions": conditions})
    await world.settle()
    text = json.dumps(world.status)
    assert "\\u001b" not in text
    assert len(text) < 20_000


def test_a_sweep_of_very_many_runs_is_refused_without_looking_at_each(monkeypatch):
    document = World().model.get(PLACE)
    lists = [str(n) for n in range(32)]
    document["spec"]["parameters"] = [
        {"field": f"limits.{name}", "values": [str(60 + n) for n in range(32)]}
        for name in (
            "gangSeconds",
            "preRunningSeconds",
            "activeSeconds",
            "noProgressSeconds",
            "nodeLostSeconds",
        )
    ] + [
        {"field": "seed", "values": lists},
        {"field": RATE, "values": [f"{n}e-7" for n in range(1, 33)]},
    ]
    verdict = review({"operation": "CREATE", "object": document, "oldObject": None})
    assert not verdict.allowed
    assert "34,359,738,368 runs" in verdict.message


def test_a_review_of_the_largest_sweep_looks_at_no_more_runs_than_one_parameter_has_values(
    monkeypatch,
):
    from rollout_api.checks.sweeps import sweep as rules

    looked = []
    real = rules.find_fault
    monkeypatch.setattr(rules, "find_fault", lambda *given: looked.append(1) or real(*given))
    document = World().model.get(PLACE)
    document["spec"]["parameters"] = [
        {"field": "seed", "values": [str(n) for n in range(32)]},
        {"field": RATE, "values": [f"{n}e-7" for n in range(1, 9)]},
    ]
    assert review({"operation": "CREATE", "object": document, "oldObject": None}).allowed
    assert len(looked) == 32
