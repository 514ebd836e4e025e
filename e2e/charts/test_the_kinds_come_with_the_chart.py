"""`crds.enabled`: one chart brings the kinds, the operator and the default runtime, upgrades them and leaves the runs.

One release is followed from its first call to the end of its kinds, while a run is there; each test asks for one thing that
was seen of it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
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
TAKE = ("--set", "crds.enabled=true", "--take-ownership")
LATER = "the default runtime is not there yet"
SECRET_BYTES_MAX = 1_048_576
"""The API server's bound on a Secret, in which Helm keeps a whole release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What of the release outlives its calls: UIDs of the kinds by name, of the runtime (empty without one) and of the run."""

    kinds: dict[str, str]
    runtime: str
    queue: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What Helm said, what it keeps, and what was there after each call."""

    said: list[str]
    kept_bytes: list[int]
    made: State
    upgraded: State
    uninstalled: State
    installed_again: State
    kinds_at_the_end: list[dict[str, Any]]


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    with or_skip(), running(Shape(fake_nodes=2)) as made:
        releases.prepare(made.kubectl)
        yield made.kubectl


@pytest.fixture(scope="module")
def seen(kubectl: Kubectl) -> Seen:
    system = releases.inside(kubectl)
    said = [helm(system, "upgrade", "rollout", CHART, *ONE).stdout for _ in range(2)]
    kept = system.get("secrets", "-l", "owner=helm,name=rollout")["items"]
    releases.open_door(kubectl)
    kubectl.apply(build_run("living"))
    made = look(kubectl)

    limits = json.dumps({"queueName": "gpus"})
    helm(system, "upgrade", "rollout", CHART, *ONE, "--set-json", f"runtime.spec={limits}")
    upgraded = look(kubectl)
    helm(system, "uninstall", "rollout", "--wait")
    uninstalled = look(kubectl)
    helm(system, "install", "rollout", CHART, *TAKE)
    installed_again = look(kubectl)

    helm(system, "upgrade", "rollout", CHART, *ONE, "--set", "crds.keep=false")
    helm(system, "uninstall", "rollout", "--wait")
    wait_until(lambda: not definitions(kubectl), "the kinds are gone")
    return Seen(
        said=said,
        kept_bytes=[len(json.dumps(one)) for one in kept],
        made=made,
        upgraded=upgraded,
        uninstalled=uninstalled,
        installed_again=installed_again,
        kinds_at_the_end=definitions(kubectl),
    )


def look(kubectl: Kubectl) -> State:
    found = kubectl.get("clusterrolloutruntimes", "--field-selector=metadata.name=default")["items"]
    [runtime] = found or [{"metadata": {"uid": ""}, "spec": {}}]
    return State(
        kinds={one["metadata"]["name"]: one["metadata"]["uid"] for one in definitions(kubectl)},
        runtime=runtime["metadata"]["uid"],
        queue=runtime["spec"].get("queueName", ""),
        run=kubectl.get("rrun", "living")["metadata"]["uid"],
    )


def definitions(kubectl: Kubectl) -> list[dict[str, Any]]:
    return kubectl.get("crd", "-l", "app.kubernetes.io/part-of=rollout")["items"]


def test_the_first_call_says_that_the_second_makes_the_runtime(seen: Seen):
    first, second = seen.said
    assert LATER in first
    assert LATER not in second
    assert seen.made.runtime


def test_an_upgrade_changes_the_runtime_and_keeps_the_runs(seen: Seen):
    assert len(seen.made.kinds) == 6
    assert (seen.upgraded.runtime, seen.upgraded.queue) == (seen.made.runtime, "gpus")
    assert seen.upgraded.kinds == seen.made.kinds
    assert seen.upgraded.run == seen.made.run


def test_a_release_with_its_kinds_fits_where_helm_keeps_it(seen: Seen):
    assert len(seen.kept_bytes) == 2
    assert all(kept < SECRET_BYTES_MAX / 2 for kept in seen.kept_bytes)


def test_uninstalling_leaves_the_kinds_and_the_runs_and_the_next_install_finds_them(seen: Seen):
    for state in (seen.uninstalled, seen.installed_again):
        assert state.kinds == seen.made.kinds
        assert state.run == seen.made.run
    assert not seen.uninstalled.runtime
    assert seen.installed_again.runtime


def test_kinds_that_are_not_kept_go_with_the_chart_and_their_runs_with_them(seen: Seen):
    assert seen.installed_again.run
    assert seen.kinds_at_the_end == []
