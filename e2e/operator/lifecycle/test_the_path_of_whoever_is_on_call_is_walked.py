"""The page for whoever is on call is followed from its first command to its last, in a night in which a node is lost.

Scheduler, controllers and operator are real, and so are the rights of who types. Nodes are `kubelets`: what pods say, and what lies
in the coordinator's, is of a run on this machine whose processes were all killed while it went on.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from accounts import READ, Person, bind, make_person
from followed_pages import follow
from kubelets import Kubelet
from kubernetes import client, config
from puppets import Puppets
from stage import World

from cluster.paths import REPOSITORY
from rollout.errors import LedgerError
from rollout.ledger.sqlite.reader import LedgerReader
from runs import build_run
from waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "paths" / "on-call.md"
STEPS = 4
GPU = "nvidia.com/gpu"
NODES = {"cpu-1": {}, "gpu-1": {GPU: "1"}, "gpu-2": {GPU: "1"}, "gpu-3": {GPU: "1"}}
ONE = {"className": "l4", "count": 1}
SPEC = {
    "runtimeRef": {"kind": "RolloutRuntime", "name": "gpus"},
    "storage": {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}},
    "train": {"algorithm": {"grpo": {"promptsPerStep": 8, "groupSize": 4}}},
    "learner": {"accelerator": ONE},
    "actors": {"replicas": 2, "accelerator": ONE},
}
RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRuntime",
    "metadata": {"name": "gpus"},
    "spec": {"acceleratorClasses": [{"name": "l4", "memory": "24Gi", "perNode": 1}]},
}
EVERYWHERE = {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns"], "verbs": READ}
RIGHTS = [
    {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns"], "verbs": [*READ, "patch"]},
    {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns/scale"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": READ},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
    {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]},
]
"""What the page and the table of reach-a-cluster.md ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The run, its nodes, and who is woken."""

    world: World
    kubelet: Kubelet
    person: Person

    def lose_the_learners_node(self) -> None:
        """And wait until the scheduler has looked for another one."""
        pod = self.world.kubectl.get("pod", "arithmetic-learner-0")
        self.kubelet.lose(pod["spec"]["nodeName"])
        self.world.wait_for("Ready", "False", "Unschedulable")

    def type_in(self, command: str) -> str:
        """One command of the page."""
        words = shlex.split(command, comments=True)
        assert words[0] == "rollout", command
        program = [sys.executable, "-m", "rollout"]
        done = self.person.start([*program, *words[1:]], errors=subprocess.STDOUT)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that goes on."""
    home = tmp_path_factory.mktemp("home")
    manifest = home / "run.yaml"
    manifest.write_text(yaml.safe_dump(build_run(spec={"train": SPEC["train"]})))
    with (home / "said.txt").open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "rollout", "run", "-f", str(manifest)],
            env={**os.environ, "ROLLOUT_HOME": str(home / "runs")},
            stdout=said,
            stderr=said,
            cwd=home,
        )
    made = home / "runs" / "arithmetic-1"
    try:
        wait_until(
            lambda: num_steps(made) >= STEPS,
            f"{STEPS} steps",
            hopeless=lambda: (home / "said.txt").read_text() if run.poll() is not None else "",
        )
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    return made


def num_steps(folder: Path) -> int:
    """Steps that its ledger has."""
    if not (folder / "ledger.db").is_file():
        return 0
    try:
        with LedgerReader(folder / "ledger.db") as ledger:
            return len(ledger.steps())
    except LedgerError:  # it is being made
        return 0


@pytest.fixture
def night(bare, operator, folder, tmp_path) -> Iterator[Night]:
    """A run at work on three nodes with a device each."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for container, name in (
        ("coordinator", "coordinator"),
        ("learner", "learner"),
        ("actor", "actor-0"),
    ):
        shutil.copy(folder / "logs" / f"{name}.log", logs / f"{container}.log")
    api = client.CoreV1Api(config.new_client_from_config(str(bare.kubeconfig)))
    kubelet = Kubelet(api=api, namespaces=[bare.namespace], nodes=NODES, folder=folder, logs=logs)
    world = World(
        kubectl=bare, puppets=Puppets(api=api, namespace=bare.namespace), operator=operator
    )
    kubelet.start()
    try:
        bare("create", "secret", "generic", "dsn", "--from-literal=dsn=postgresql://nowhere/x")
        bare.apply(RUNTIME)
        world.apply(spec=SPEC)
        world.wait_for("Ready", "True", "Running")
        world.report(progress(num_steps(folder)))
        person = make_person(bare, "on-call", RIGHTS, tmp_path, columns=150)
        bind(bare, "ClusterRole", bare.namespace, "on-call", [EVERYWHERE])
        yield Night(world=world, kubelet=kubelet, person=person)
    finally:
        kubelet.stop()
        bare("delete", "clusterrole,clusterrolebinding", bare.namespace, "--ignore-not-found")


def progress(step: int) -> dict:
    """What the coordinator has written last."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    figures = {"rewardMean": "0.53", "tokensPerSecond": "2100", "bottleneck": "Learner"}
    return {
        "attempt": 1,
        "step": step,
        "maxSteps": 400,
        "policyVersion": step,
        **figures,
        "updateTime": now,
    }


def test_a_lost_node_is_found_worked_around_and_slept_over(night):
    night.lose_the_learners_node()

    follow(PAGE, night.type_in)

    assert night.world.condition("Ready")["status"] == "True"
    assert night.world.run()["status"]["attempt"] == 2
    assert (night.person.kubeconfig.parent / "arithmetic-report.html").is_file()
