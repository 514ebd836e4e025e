"""`crds.enabled`: one chart brings the kinds, the operator and the default runtime, upgrades them and leaves the runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import releases
from releases import helm

import charts
from cluster.kubectl import Kubectl
from cluster.local import Shape, running
from cluster.skips import or_skip
from runs import build_run
from waiting import wait_until

pytestmark = pytest.mark.control_plane

CHART = str(charts.CHART)
ONE = ("--install", "--set", "crds.enabled=true")
SECRET_BYTES_MAX = 1_048_576
"""The API server's bound on a Secret, in which Helm keeps a whole release."""


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    with or_skip(), running(Shape(fake_nodes=2)) as made:
        releases.prepare(made.kubectl)
        yield made.kubectl


@pytest.fixture
def system(kubectl: Kubectl) -> Iterator[Kubectl]:
    """The chart with its kinds, in its namespace, and the runtime that the second call makes; everything of it goes, whatever the test did."""
    inside = releases.inside(kubectl)
    made = helm(inside, "upgrade", "rollout", CHART, *ONE)
    assert "the default runtime is not there yet" in made.stdout
    made = helm(inside, "upgrade", "rollout", CHART, *ONE)
    assert "the default runtime is not there yet" not in made.stdout
    yield inside
    helm(inside, "uninstall", "rollout", "--wait", "--ignore-not-found")
    kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=rollout")


def definitions(kubectl: Kubectl) -> list[dict[str, Any]]:
    return kubectl.get("crd", "-l", "app.kubernetes.io/part-of=rollout")["items"]


def runtime_uid(kubectl: Kubectl) -> str:
    return kubectl.get("clusterrolloutruntime", "default")["metadata"]["uid"]


def make_run(kubectl: Kubectl, name: str) -> str:
    """Its UID."""
    releases.open_door(kubectl)
    kubectl.apply(build_run(name))
    return kubectl.get("rrun", name)["metadata"]["uid"]


def test_an_upgrade_changes_the_runtime_and_keeps_the_runs(system: Kubectl, kubectl: Kubectl):
    runtime, run = runtime_uid(kubectl), make_run(kubectl, "living")
    kinds = {one["metadata"]["name"]: one["metadata"]["uid"] for one in definitions(kubectl)}
    assert len(kinds) == 6

    limits = json.dumps({"queueName": "gpus"})
    helm(system, "upgrade", "rollout", CHART, *ONE, "--set-json", f"runtime.spec={limits}")

    found = kubectl.get("clusterrolloutruntime", "default")
    assert (found["metadata"]["uid"], found["spec"]["queueName"]) == (runtime, "gpus")
    after = {one["metadata"]["name"]: one["metadata"]["uid"] for one in definitions(kubectl)}
    assert after == kinds
    assert kubectl.get("rrun", "living")["metadata"]["uid"] == run


def test_a_release_with_its_kinds_fits_where_helm_keeps_it(system: Kubectl):
    releases_kept = system.get("secrets", "-l", "owner=helm,name=rollout")["items"]
    assert len(releases_kept) == 2
    for kept in releases_kept:
        assert len(json.dumps(kept)) < SECRET_BYTES_MAX / 2


def test_uninstalling_leaves_the_kinds_and_the_runs_and_the_next_install_finds_them(
    system: Kubectl, kubectl: Kubectl
):
    run = make_run(kubectl, "stays")
    helm(system, "uninstall", "rollout", "--wait")
    assert len(definitions(kubectl)) == 6
    assert kubectl.get("rrun", "stays")["metadata"]["uid"] == run

    take = ("--set", "crds.enabled=true", "--take-ownership")
    helm(system, "install", "rollout", CHART, *take)
    assert runtime_uid(kubectl)
    assert kubectl.get("rrun", "stays")["metadata"]["uid"] == run


def test_kinds_that_are_not_kept_go_with_the_chart_and_their_runs_with_them(
    system: Kubectl, kubectl: Kubectl
):
    make_run(kubectl, "leaves")
    helm(system, "upgrade", "rollout", CHART, *ONE, "--set", "crds.keep=false")
    helm(system, "uninstall", "rollout", "--wait")
    wait_until(lambda: not definitions(kubectl), "the kinds are gone")
