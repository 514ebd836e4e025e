"""From the charts and the operator of the commit before to these, and back, while runs are at work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import releases

import charts
from cluster.kubectl import Kubectl
from cluster.local import Shape, running
from cluster.paths import REPOSITORY
from cluster.skips import or_skip
from runs import build_run
from waiting import wait_until
from webhooks import fetch

pytestmark = pytest.mark.control_plane

MANY = 100
PODS_PER_NODE = 100
PODS_PER_RUN = 3
START_SECONDS = 900.0
VALUES = {"webhook": {"namespaceSelector": {"matchLabels": {"reviewed": "by-nobody-here"}}}}
"""Fake pods answer no reviews."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """Runs at work under the release before: `kubectl` where they are, `system` where the release is."""

    kubectl: Kubectl
    system: Kubectl
    before: Path
    values: str
    runs: tuple[str, ...]
    state: releases.State


@pytest.fixture(scope="module", params=[6, pytest.param(MANY, marks=pytest.mark.slow)])
def living(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Living]:
    runs = tuple(f"run-{number}" for number in range(request.param))
    num_nodes = 2 + len(runs) * PODS_PER_RUN // PODS_PER_NODE
    with or_skip():
        before = releases.previous(tmp_path_factory.mktemp("before"))
    with or_skip(), running(Shape(fake_nodes=num_nodes)) as cluster:
        yield start(cluster.kubectl, before, tmp_path_factory.mktemp("scratch"), runs)


def start(kubectl: Kubectl, before: Path, scratch: Path, runs: tuple[str, ...]) -> Living:
    """Install the release before and let its operator bring the runs to work."""
    values = releases.write_values(scratch, VALUES)
    system = releases.prepare(kubectl)
    releases.give_volumes(kubectl, len(runs))
    releases.helm(system, "install", "rollout-crds", str(before / "charts" / "rollout-crds"))
    chart = str(before / "charts" / "rollout")
    releases.helm(system, "install", "rollout", chart, "--values", values)
    with releases.operating(system, scratch, before):
        kubectl.apply(*(build_run(name) for name in runs))
        wait_until(lambda: releases.working(kubectl) == set(runs), "all runs work", START_SECONDS)
        state = releases.state_of(kubectl)
    return Living(
        kubectl=kubectl, system=system, before=before, values=values, runs=runs, state=state
    )


def specs(kubectl: Kubectl) -> dict[str, tuple[str, int]]:
    found = kubectl.get("rolloutruns")["items"]
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["metadata"]["generation"])
            for one in found}  # fmt: skip


def settle(living: Living, scratch: Path, source: Path, scaled: str) -> None:
    """Let an operator look at every run, and see that it acts: it scales one run's actors and nothing else."""
    with releases.operating(living.system, scratch, source) as health:
        wait_until(lambda: num_reconciled(health) >= len(living.runs), "every run was looked at")
        assert releases.state_of(living.kubectl) == living.state
        assert releases.working(living.kubectl) == set(living.runs)
        living.kubectl("scale", "rolloutrun", scaled, "--replicas=2")
        wait_until(lambda: num_actors(living.kubectl, scaled) == 2, "a second actor is there")
        living.kubectl("scale", "rolloutrun", scaled, "--replicas=1")
        wait_until(lambda: num_actors(living.kubectl, scaled) == 1, "it is gone again")


def num_actors(kubectl: Kubectl, run: str) -> int:
    return len(kubectl.get("pods", "-l", f"rollout.dev/run={run},rollout.dev/role=actor")["items"])


def num_reconciled(health: str) -> float:
    return releases.metric(fetch(f"{health}/metrics")[1], "rollout_reconcile_total")


def same_but_for(state: releases.State, run: str) -> releases.State:
    return {key: mark for key, mark in state.items() if not key[1].startswith(f"{run}-actor")}


def test_an_upgrade_and_the_way_back_touch_no_child_of_a_living_run(living: Living, tmp_path: Path):
    objects = specs(living.kubectl)

    releases.helm(living.system, "upgrade", "rollout-crds", str(charts.CRDS_CHART))
    releases.helm(living.system, "upgrade", "rollout", str(charts.CHART), "--values", living.values)
    scaled, *others = living.runs
    settle(living, tmp_path, REPOSITORY, scaled)
    upgraded = releases.state_of(living.kubectl)
    assert same_but_for(upgraded, scaled) == same_but_for(living.state, scaled)

    releases.helm(living.system, "rollback", "rollout", "1")
    releases.helm(living.system, "rollback", "rollout-crds", "1")
    with releases.operating(living.system, tmp_path, living.before) as health:
        wait_until(lambda: num_reconciled(health) >= len(living.runs), "every run was looked at")
        assert releases.state_of(living.kubectl) == upgraded
        assert releases.working(living.kubectl) == set(living.runs)

    now = specs(living.kubectl)
    assert {name: now[name] for name in others} == {name: objects[name] for name in others}


def test_uninstalling_both_charts_leaves_runs_and_pods_at_work(living: Living, tmp_path: Path):
    before, objects = releases.state_of(living.kubectl), specs(living.kubectl)

    releases.helm(living.system, "uninstall", "rollout", "--wait")
    releases.helm(living.system, "uninstall", "rollout-crds", "--wait")

    assert (releases.state_of(living.kubectl), specs(living.kubectl)) == (before, objects)
    assert len(living.kubectl.get("crd", "-l", "app.kubernetes.io/part-of=rollout")["items"]) == 6

    crds = str(charts.CRDS_CHART)
    releases.helm(living.system, "install", "rollout-crds", crds, "--take-ownership")
    releases.helm(living.system, "install", "rollout", str(charts.CHART), "--values", living.values)
    with releases.operating(living.system, tmp_path) as health:
        wait_until(lambda: num_reconciled(health) >= len(living.runs), "every run was looked at")
        assert releases.state_of(living.kubectl) == before


def test_the_kinds_move_into_the_one_chart_under_living_runs(living: Living, tmp_path: Path):
    """From two releases to one: the chart takes the definitions over, and the other release leaves what it kept."""
    before, objects = releases.state_of(living.kubectl), specs(living.kubectl)

    values = ("--values", living.values, "--set", "crds.enabled=true")
    releases.helm(
        living.system, "upgrade", "rollout", str(charts.CHART), *values, "--take-ownership"
    )
    releases.helm(living.system, "uninstall", "rollout-crds", "--wait")

    found = living.kubectl.get("crd", "-l", "app.kubernetes.io/part-of=rollout")["items"]
    owners = {one["metadata"]["annotations"]["meta.helm.sh/release-name"] for one in found}
    assert (len(found), owners) == (6, {"rollout"})
    with releases.operating(living.system, tmp_path) as health:
        wait_until(lambda: num_reconciled(health) >= len(living.runs), "every run was looked at")
        assert releases.state_of(living.kubectl) == before
    assert specs(living.kubectl) == objects
