"""Training as a service in a real pod: the `tinker` client as it comes from the index, in a pod of its own, trains by the run's
address, while the service is killed in the middle of the loop, then suspended and resumed. The same loop against
`rollout run -f` on this machine comes to the same chain.

One service is followed from its start to its end; each test asks for one thing that was seen of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import PYTHON
from watched import Stage, WatchedRun

from cluster.nodes import containers
from cluster.paths import REPOSITORY
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from runs import lay_over

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

SECONDS_MAX = 240.0
SAMPLE = REPOSITORY / "manifests" / "samples" / "training-service.yaml"
STEPS_BETWEEN = 3
LOOP = """
import json, os, sys, time, urllib.request
import tinker
from tinker import types

steps_max, stop = int(sys.argv[1]), sys.argv[2]
client = tinker.ServiceClient()
model = client.create_lora_training_client("tiny", rank=8, seed=5, train_unembed=False).result()
rows = [[3, 11, 4, 12, 7], [2, 11, 5, 12, 7], [1, 11, 1, 12, 2]]
data = [
    types.Datum(
        model_input=types.ModelInput.from_ints(row[:-1]),
        loss_fn_inputs={"target_tokens": row[1:], "weights": [0.0, 0.0, 0.0, 1.0]},
    )
    for row in rows
]
step = 0
while step < steps_max and not os.path.exists(stop):
    backward = model.forward_backward(data, "cross_entropy")
    stepped = model.optim_step(types.AdamParams(learning_rate=1e-3))
    loss = backward.result().metrics["loss:sum"]
    stepped.result()
    step += 1
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    if not steps_max < 1000:
        time.sleep(0.3)  # of a loop that others stop: so that it does not run ahead of them
place = os.environ["TINKER_BASE_URL"] + "/api/v1/rollout/models/" + model.model_id
asked = urllib.request.Request(place, headers={"X-API-Key": os.environ["TINKER_API_KEY"]})
print(json.dumps({"end": step, "state": json.load(urllib.request.urlopen(asked, timeout=60))}), flush=True)
"""
FOR_EVER, STOP = "1000000", "/tmp/stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the service while it lived."""

    losses: list[float]
    steps: int
    chain: str
    here: str
    restarts: int
    killed_at: int
    suspended_at: int
    progress: dict[str, Any]
    attempts: int
    stranger: int
    left: set[str]
    said: str
    key: str


def build_client(url: str, key: str) -> dict[str, Any]:
    """A pod with the loop; it goes on until the file ``STOP`` is there."""
    volumes, mounts = containers.build_environment_mounts()
    given = {
        "HOME": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TINKER_BASE_URL": url,
        "TINKER_API_KEY": f"tml-{key}",
    }
    container = {
        "name": "loop",
        "image": containers.WORKER,
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-u", "-c", LOOP, FOR_EVER, STOP],
        "env": [{"name": name, "value": value} for name, value in given.items()],
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loop"},
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The client's pod, by what it has printed."""

    run: WatchedRun

    def told(self) -> list[dict[str, Any]]:
        lines = self.run.kubectl.said("loop").splitlines()
        return [json.loads(one) for one in lines if one.startswith("{") and one.endswith("}")]

    def step(self) -> int:
        """Steps that are done."""
        return max((one.get("step", 0) for one in self.told()), default=0)

    def goes_on(self, what: str) -> int:
        """Wait for a few more steps; the step that it is at."""
        until = self.step() + STEPS_BETWEEN
        self.run.until(lambda: self.step() >= until, what, SECONDS_MAX)
        return self.step()

    def end(self) -> dict[str, Any]:
        """Have it stop after the step that it is in; its last line."""
        self.run.kubectl("exec", "loop", "--", PYTHON, "-c", f"open({STOP!r}, 'w')")
        ended = self.run.until(
            lambda: [one for one in self.told() if "end" in one], "the end of the loop", SECONDS_MAX
        )
        return ended[0]


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    kubectl, folder = stage.kubectl, tmp_path_factory.mktemp("keys")
    key = KeyFile(folder).create("ann", KeyLimits(), now=time.time(), expires=None)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "loop-keys"}}
    kubectl.apply({**secret, "stringData": {"ann": key}})
    manifest = lay_over(
        yaml.safe_load(SAMPLE.read_text()),
        {
            "spec": {
                "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
                "learner": {"resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}},
                "storage": {"ledger": {"sqlite": {}, "deletionPolicy": "Delete"}},
            }
        },
    )
    run = stage.start(manifest)
    ready = lambda: run.condition("Ready").get("status") == "True"  # noqa: E731
    run.until(ready, "the service answers", SECONDS_MAX)
    answered = lambda: run.status().get("progress", {}).get("serve")  # noqa: E731
    url = run.until(answered, "its address", SECONDS_MAX)["url"]
    kubectl.apply(build_client(url, key))
    loop = Loop(run=run)

    killed_at = loop.goes_on("steps of a first life")
    run.kill(f"{run.name}-coordinator-0", "coordinator")
    loop.goes_on("steps of a second life")
    (pod,) = run.pods()
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    stranger = _ask_as_nobody(run, url)

    run.patch({"suspend": True})
    suspended = lambda: run.condition("Suspended").get("status") == "True"  # noqa: E731
    run.until(suspended, "no pod is left", SECONDS_MAX)
    suspended_at = loop.step()
    run.patch({"suspend": False})
    loop.goes_on("steps after the suspension")
    ended = loop.end()
    counted = lambda: answered() and answered()["calls"] >= 2 * ended["end"]  # noqa: E731
    run.until(counted, "calls that are counted", SECONDS_MAX)
    said = kubectl.attempt("logs", f"{run.name}-coordinator-0").stdout + json.dumps(run.read())
    losses = [one["loss"] for one in loop.told() if "loss" in one]
    status = run.status()
    kubectl("delete", "pod", "loop", "--wait=false")
    kubectl("delete", "rolloutrun", run.name)
    run.wait_for_no_pods(SECONDS_MAX)
    return Seen(
        losses=losses,
        steps=ended["end"],
        chain=ended["state"]["chain"],
        here=_train_here(manifest, ended["end"], tmp_path_factory.mktemp("here")),
        restarts=restarts,
        killed_at=killed_at,
        suspended_at=suspended_at,
        progress=status["progress"],
        attempts=status["attempt"],
        stranger=stranger,
        left={one["metadata"]["name"] for one in kubectl.get("services,statefulsets")["items"]},
        said=said,
        key=key,
    )


def _ask_as_nobody(run: WatchedRun, url: str) -> int:
    """The code of an answer to a call without a key, asked from the loop's pod."""
    words = (
        "import sys, urllib.request, urllib.error\n"
        "try:\n    print(urllib.request.urlopen(sys.argv[1], timeout=60).status)\n"
        "except urllib.error.HTTPError as error:\n    print(error.code)\n"
    )
    place = f"{url}/api/v1/get_server_capabilities"
    return int(run.kubectl("exec", "loop", "--", PYTHON, "-c", words, place).strip())


@contextmanager
def _served_here(manifest: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """The same manifest on this machine, without a cluster: where it answers, and its key."""
    (folder / "run.json").write_text(json.dumps(manifest))
    command = [sys.executable, "-m", "rollout", "run", "-f", str(folder / "run.json")]
    env = {**os.environ, "ROLLOUT_HOME": str(folder)}
    with subprocess.Popen(
        [*command, "--output", "json"], stdout=subprocess.PIPE, env=env, text=True
    ) as served:
        assert served.stdout is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                line = served.stdout.readline()
                assert line, "the service on this machine has ended"
                text += line
            yield json.loads(text)
        finally:
            served.send_signal(signal.SIGINT)


def _train_here(manifest: dict[str, Any], steps: int, folder: Path) -> str:
    """The chain of the same loop against the same manifest on this machine."""
    with _served_here(manifest, folder) as said:
        env = {**os.environ, "TINKER_BASE_URL": said["url"], "TINKER_API_KEY": said["key"]}
        command = [sys.executable, "-c", LOOP, str(steps), str(folder / "stop")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["state"]["chain"]


def test_the_loop_went_on_through_a_kill_and_a_suspension(seen: Seen):
    assert 0 < seen.killed_at < seen.suspended_at < seen.steps
    assert seen.restarts >= 1
    assert seen.attempts == 2
    assert len(seen.losses) == seen.steps
    assert seen.losses[-1] < seen.losses[0]


def test_its_chain_is_that_of_the_same_loop_on_one_machine(seen: Seen):
    assert seen.chain == seen.here


def test_the_status_counts_models_and_calls(seen: Seen):
    assert seen.progress["attempt"] == 2
    assert seen.progress["serve"]["models"] == 1
    assert seen.progress["serve"]["calls"] == 2 * seen.steps


def test_without_a_key_nobody_is_answered_and_no_key_is_said(seen: Seen):
    assert seen.stranger == 401
    assert seen.key not in seen.said
    assert seen.key.rsplit("-", 1)[1] not in seen.said


def test_a_run_that_is_deleted_takes_its_service_along(seen: Seen):
    assert not seen.left
