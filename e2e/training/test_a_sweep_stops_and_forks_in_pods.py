"""A RolloutSweep whose runs train in real pods: the loser is suspended at a rung, a fork begins with a snapshot of the winner, all ends.

Before that the sweep is suspended, with its pods, and goes on. The reward falls with the length of what is sampled, and
the one run may sample less than the other: who loses is known beforehand. What it shows is held quickly in
tests/rollout_operator/sweep, against a model of an API server.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from bucket import Bucket, serving
from installation import cache_of
from watched import Stage, WatchedRun

from cluster.nodes.addons import build_volume
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(1500)]

NAME, LOSER, WINNER, FORK = "lengths", "lengths-000", "lengths-001", "lengths-f001"
RUNG, STEPS = 80, 400
"""Of a third of a second or more each: both runs are there before the rung, and the winner when its snapshot is taken, half a minute later."""
START_SECONDS, SAVE_SECONDS, END_SECONDS = 400.0, 300.0, 600.0


def build_sweep(runtime: str) -> dict[str, Any]:
    """Two runs whose rewards are 1/2 and 1; the place of the one that loses is taken by a fork of the other, which loses to nobody."""
    free = [{"name": "freeTokens", "value": "2"}, {"name": "limitTokens", "value": "6"}]
    short = {"builtin": {"name": "length", "parameters": free}}
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [short],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": STEPS,
    }
    template = {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": runtime},
        "seed": 7,
        "model": {"uri": "rollout://tiny-adder?steps=0"},
        "train": train,
        "actors": {"engine": {"embedded": {}}},
        "snapshots": {"everySteps": 20},
    }
    spec = {
        "parallelism": 2,
        "parameters": [
            {"field": "train.sampling.maxNewTokens", "values": ["4", "2"]},
            {"field": "train.optimizer.adamw.learningRate", "values": ["1e-7"]},
        ],
        "earlyStopping": {"halving": {"firstStep": RUNG, "factor": 2}},
        "forks": {"max": 1},
        "template": {"spec": template},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSweep"}
    return {**head, "metadata": {"name": NAME}, "spec": spec}


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The sweep, while its winner and its fork are at work."""

    stage: Stage
    bucket: Bucket

    def status(self) -> dict[str, Any]:
        return self.stage.kubectl.get("rolloutsweep", NAME).get("status", {})

    def entry(self, name: str) -> dict[str, Any]:
        return next((one for one in self.status().get("runs", ()) if one["name"] == name), {})

    def holds(self, kind: str) -> bool:
        found = self.status().get("conditions", ())
        return any(one["type"] == kind and one["status"] == "True" for one in found)

    def run(self, name: str) -> WatchedRun:
        return WatchedRun(kubectl=self.stage.kubectl, cluster=self.stage.cluster, name=name)

    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.stage.kubectl.get("pods")["items"]]

    def until(self, holds: Any, what: str, seconds: float) -> Any:
        try:
            return wait_until(holds, what, seconds, every=1.0)
        except AssertionError as error:
            runs = [self.run(name).describe() for name in (LOSER, WINNER) if self.entry(name)]
            told = json.dumps(self.status(), indent=1)
            raise AssertionError("\n".join([f"{error}", told, *runs])) from None

    def suspend(self, *, lifted: bool = False) -> None:
        self.stage.kubectl.merge("rolloutsweep", NAME, {"spec": {"suspend": not lifted}})


@pytest.fixture(scope="module")
def swept(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    runtime = f"bucket-{stage.kubectl.namespace}"
    for number in range(2):  # beside the one that the stage has
        folder = tmp_path_factory.mktemp(f"ledger-{number}")
        folder.chmod(0o777)
        name = f"{stage.kubectl.namespace}-{number}"
        stage.kubectl.apply(build_volume(name, str(folder), size="10Gi"))
    with serving(stage.cluster, tmp_path_factory.mktemp("s3")) as bucket:
        stage.kubectl.apply(bucket.runtime(runtime, cache_of(stage.kubectl)))
        stage.kubectl.apply(build_sweep(runtime))
        yield Swept(stage=stage, bucket=bucket)
        stage.kubectl("delete", "rolloutsweep", NAME, "--ignore-not-found")
        stage.kubectl("delete", "clusterrolloutruntime", runtime)


def test_a_suspended_sweep_has_no_pods_and_goes_on_where_it_was(swept: Swept):
    both = (LOSER, WINNER)
    for name in both:
        swept.until(lambda n=name: swept.run(n).step() > 0, f"a step of {name}", START_SECONDS)
    swept.suspend()
    swept.until(lambda: swept.holds("Suspended"), "the suspension", SAVE_SECONDS)
    assert swept.pods() == []
    assert swept.status()["counts"]["suspended"] == 2, swept.status()
    before = {name: swept.run(name).status()["progress"]["step"] for name in both}
    swept.suspend(lifted=True)
    for name, step in before.items():
        swept.until(
            lambda n=name, s=step: swept.run(n).step() > s, f"more of {name}", START_SECONDS
        )


def test_the_worse_run_is_suspended_and_a_fork_of_the_better_is_made(swept: Swept):
    swept.until(lambda: swept.entry(LOSER).get("outcome"), "a loser", START_SECONDS)
    assert swept.entry(LOSER)["outcome"] == "Stopped", swept.status()
    assert not swept.entry(WINNER).get("outcome")
    swept.until(lambda: swept.run(LOSER).condition("Suspended"), "its suspension", SAVE_SECONDS)
    swept.until(lambda: swept.entry(FORK).get("uid"), "the fork", SAVE_SECONDS)
    fork = swept.run(FORK).read()["spec"]
    assert fork["restoreFrom"] == {"snapshotRef": {"name": FORK}}
    assert fork["train"]["sampling"]["maxNewTokens"] == 2
    assert swept.entry(FORK)["forkedFrom"]["name"] == WINNER
    begun = swept.stage.kubectl.get("rolloutsnapshot", FORK)["status"]["step"]
    swept.until(lambda: swept.run(FORK).step() > begun, "a step of the fork", START_SECONDS)


def test_it_ends_complete_and_names_the_best(swept: Swept):
    swept.until(lambda: swept.holds("Finished"), "the end of the sweep", END_SECONDS)
    status = swept.status()
    assert swept.holds("Complete"), status
    assert status["best"]["name"] == WINNER
    assert float(status["best"]["value"]) == pytest.approx(1.0)
    assert {one["name"]: one.get("outcome") for one in status["runs"]} == {
        LOSER: "Stopped",
        WINNER: "Succeeded",
        FORK: "Succeeded",
    }
    events = {one["reason"] for one in swept.stage.kubectl.get("events")["items"]}
    assert {"RunStarted", "RunStopped", "RunForked", "RunEnded", "Suspended"} <= events


def test_deleted_it_takes_its_runs_and_the_snapshots_of_its_forks(swept: Swept):
    kubectl = swept.stage.kubectl
    kubectl("delete", "rolloutsweep", NAME)
    swept.until(lambda: not kubectl.get("rolloutruns")["items"], "the end of its runs", END_SECONDS)
    swept.until(
        lambda: not kubectl.get("rolloutsnapshots")["items"], "the end of snapshots", END_SECONDS
    )
    swept.until(lambda: not swept.pods(), "the end of every pod", END_SECONDS)
