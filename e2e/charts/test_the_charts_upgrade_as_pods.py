"""A run that trains in real pods goes on through an upgrade of both charts, a roll-back, and an uninstall."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import installation
import releases
from installed import image_values, real_nodes

import charts
from cluster.errors import BuildError
from cluster.kubectl import Kubectl
from cluster.nodes import containers
from cluster.nodes.addons import build_volume
from cluster.skips import or_skip
from runs import build_run
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(2400)]

BEFORE = "rollout.test/operator:before"
START_SECONDS, STEP_SECONDS = 900.0, 300.0
SPEC = {
    "actors": {"engine": {"embedded": {}}},
    "train": {"maxSteps": 100_000},
    "limits": {"activeSeconds": 7200},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A run at work under the release before."""

    kubectl: Kubectl
    system: Kubectl
    values: Path

    def step(self) -> int:
        status = self.kubectl.get("rolloutrun", "arithmetic").get("status", {})
        return status.get("progress", {}).get("step", 0)

    def children(self) -> releases.State:
        """All but the learner's disruption budget, which comes and goes with its anchors."""
        found = releases.state_of(self.kubectl)
        found.pop(("PodDisruptionBudget", "arithmetic-learner"), None)
        return found

    def wait_for_a_step(self) -> None:
        """Whatever happened before, the run goes on."""
        before = self.step()
        wait_until(lambda: self.step() > before, f"a step after {before}", STEP_SECONDS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    with or_skip():
        before = releases.previous(tmp_path_factory.mktemp("before"))
    folders = [tmp_path_factory.mktemp(name) for name in ("cache", "ledger")]
    for folder in folders:
        folder.chmod(0o777)
    with real_nodes() as cluster:
        with or_skip(BuildError):
            archives = [containers.ensure_operator(before, BEFORE), containers.ensure_worker()]
        for archive in archives:
            cluster.import_image(archive)
        kubectl = cluster.kubectl
        kubectl.apply(build_volume("ledger", str(folders[1]), size="10Gi"))
        runtime = {"runtime": {"spec": installation.build_runtime(folders[0])["spec"]}}
        values = tmp_path_factory.mktemp("values")
        system = releases.prepare(kubectl)
        releases.helm(system, "install", "rollout-crds", str(before / "charts" / "rollout-crds"))
        old = releases.write_values(values, image_values(BEFORE) | runtime)
        wait = ("--wait", "--timeout", "10m", "--values", old)
        releases.helm(system, "install", "rollout", str(before / "charts" / "rollout"), *wait)
        folders_allowed = {"hostPaths": installation.build_folders(folders[0])}
        allowed = {"admissionPolicy": {"podsMay": folders_allowed}}
        releases.write_values(values, image_values() | runtime | allowed)
        made = Trained(kubectl=kubectl, system=system, values=values / "values.yaml")
        kubectl.apply(build_run(spec=SPEC))
        wait_until(lambda: made.step() >= 1, "a first step", START_SECONDS)
        yield made


def test_training_goes_on_through_upgrade_roll_back_and_uninstall(trained: Trained):
    state = trained.children()
    wait = ("--wait", "--timeout", "10m")

    releases.helm(trained.system, "upgrade", "rollout-crds", str(charts.CRDS_CHART))
    values = ("--values", str(trained.values))
    releases.helm(trained.system, "upgrade", "rollout", str(charts.CHART), *values, *wait)
    trained.wait_for_a_step()
    assert trained.children() == state

    releases.helm(trained.system, "rollback", "rollout", "1", *wait)
    releases.helm(trained.system, "rollback", "rollout-crds", "1")
    trained.wait_for_a_step()
    assert trained.children() == state

    releases.helm(trained.system, "uninstall", "rollout", "--wait")
    releases.helm(trained.system, "uninstall", "rollout-crds", "--wait")
    trained.wait_for_a_step()
    assert trained.children() == state
