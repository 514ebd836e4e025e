"""The API server itself knows what may change: never, in a run that is suspended, or at any time; by the spec alone."""

import json
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.kubectl import Kubectl
from rule_cases import (
    NEVER,
    OTHER_WORK,
    SEVERAL_PLACES,
    SNAPSHOTS,
    START,
    SWEEPS,
    SWEPT,
    WHEN_SUSPENDED,
)
from runs import build_run, install_crds
from schemas import Rule, build_document, read_rules, read_schemas

pytestmark = pytest.mark.control_plane

SCHEMAS = read_schemas()
ALWAYS: dict[str, dict[str, Any]] = {
    "more actors": {"actors": {"replicas": 8}},
    "autoscaling": {"actors": {"autoscale": {"min": 1, "max": 4}}},
    "suspend": {"suspend": True},
    "limits": {"limits": {"activeSeconds": 3600}},
    "snapshots": {"snapshots": {"everySteps": 5}},
    "evaluations": {"evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}}]},
    "tracking": {"tracking": [{"tensorboard": {}}]},
    "more steps": {"train": {"maxSteps": 500}},
}
ALIVE = {"attempt": 1, "conditions": []}
CONDITION = {"reason": "Suspended", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def suspended(status: str) -> dict[str, Any]:
    return {"attempt": 1, "conditions": [{"type": "Suspended", "status": status, **CONDITION}]}


@pytest.fixture(scope="module")
def server(fake_cluster: Any) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake_cluster.kubectl


@pytest.fixture
def kubectl(server: Kubectl, fake: Kubectl) -> Kubectl:
    fake.apply(build_run(spec=START))
    return fake


def report(kubectl: Kubectl, status: dict[str, Any]) -> None:
    kubectl.merge("rrun", "arithmetic", {"status": status}, "status")


def change(kubectl: Kubectl, spec: dict[str, Any]) -> str:
    """What the API server says to a change; empty when it takes it. Nothing is changed."""
    try:
        kubectl.merge("rrun", "arithmetic", {"spec": spec}, dry_run=True)
    except ClusterError as error:
        return str(error)
    return ""


def test_what_names_the_run_never_changes(kubectl: Kubectl):
    for status in ({}, ALIVE, suspended("True")):
        report(kubectl, status)
        for what, (spec, words) in NEVER.items():
            assert words in change(kubectl, spec), what


def suspend(kubectl: Kubectl) -> None:
    kubectl.merge("rrun", "arithmetic", {"spec": {"suspend": True}})


def test_what_pods_were_made_from_is_settled_whatever_the_status_says(kubectl: Kubectl):
    for status in ({}, {"attempt": 0}, ALIVE, suspended("False"), suspended("True")):
        report(kubectl, status)
        for what, (spec, words) in WHEN_SUSPENDED.items():
            assert words in change(kubectl, spec), what


def test_it_may_change_with_the_suspension_while_it_holds_and_with_the_resume(kubectl: Kubectl):
    report(kubectl, ALIVE)
    for what, (spec, _) in WHEN_SUSPENDED.items():
        assert not change(kubectl, {**spec, "suspend": True}), what
    suspend(kubectl)
    for what, (spec, _) in WHEN_SUSPENDED.items():
        assert not change(kubectl, spec), what
        assert not change(kubectl, {**spec, "suspend": False}), what


def test_live_settings_change_at_any_time(kubectl: Kubectl):
    for status in ({}, ALIVE, suspended("True")):
        report(kubectl, status)
        for what, spec in ALWAYS.items():
            assert not change(kubectl, spec), what


def test_scaling_sets_the_actors_and_nothing_else(kubectl: Kubectl):
    report(kubectl, ALIVE)
    kubectl("scale", "rrun/arithmetic", "--replicas=5")

    spec = kubectl.get("rrun", "arithmetic")["spec"]

    assert spec["actors"]["replicas"] == 5
    assert "learner" not in spec


@pytest.mark.parametrize("work", OTHER_WORK)
def test_other_work_is_settled_likewise(kubectl: Kubectl, work: str):
    before, changed, words = OTHER_WORK[work]
    kubectl("delete", "rrun", "arithmetic")
    kubectl.apply(build_run(spec={"train": None, work: before}))
    report(kubectl, ALIVE)
    assert words in change(kubectl, {work: changed})
    assert not change(kubectl, {work: changed, "suspend": True})


@pytest.mark.parametrize(
    "rule",
    [one for one in read_rules() if one.message in SEVERAL_PLACES],
    ids=lambda one: one.field,
)
def test_a_rule_holds_at_each_of_its_places(server: Kubectl, fake: Kubectl, rule: Rule):
    before, changed = SEVERAL_PLACES[rule.message]
    schema = SCHEMAS[rule.kind]
    old, new = (build_document(rule.kind, schema, rule.path, value) for value in (before, changed))
    fake.apply(old)

    refused = fake.attempt("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(new))

    assert rule.message in refused.stderr
    assert rule.field in refused.stderr
    old["spec"] |= {"limits": {"activeSeconds": 3600}}
    fake.apply(old)


@pytest.mark.parametrize("what", SNAPSHOTS)
def test_what_a_snapshot_is_of_never_changes(kubectl: Kubectl, what: str):
    before, changed, words = SNAPSHOTS[what]
    kubectl.apply(build_run("kept") | {"kind": "RolloutSnapshot", "spec": before})
    answers = [
        kubectl.attempt("patch", "rsnap", "kept", "--type=merge", "-p", json.dumps({"spec": spec}))
        for spec in (changed, {"deletionPolicy": "Retain", "description": "kept"})
    ]
    assert words in answers[0].stderr
    assert answers[1].returncode == 0


@pytest.mark.parametrize("what", SWEEPS)
def test_what_a_sweep_compares_never_changes(kubectl: Kubectl, what: str):
    changed, words = SWEEPS[what]
    kubectl.apply(build_run("swept") | {"kind": "RolloutSweep", "spec": SWEPT})
    answers = [
        kubectl.attempt(
            "patch", "rsweep", "swept", "--type=merge", "-p", json.dumps({"spec": spec})
        )
        for spec in (changed, {"parallelism": 4, "suspend": True})
    ]
    assert words in answers[0].stderr
    assert answers[1].returncode == 0
