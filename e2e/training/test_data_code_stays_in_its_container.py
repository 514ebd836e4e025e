"""An author's data code in a real coordinator's pod: it gives rows to a run that trains, and gets nothing of the coordinator's.

The code tries what its user, mounts and process numbers keep from it, when the data is looked at and while the run goes on,
and ends the run with what it got.
"""

from typing import Any

import pytest
from watched import Stage, WatchedRun

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

END_SECONDS = 300.0
MINE = """
import json, os, pathlib, socket

RUN, OURS = "/var/lib/rollout", "/var/run/rollout"
CLOSED = [
    RUN + "/ledger.db", RUN + "/worker.json", OURS + "/tls/tls.key", OURS + "/token/token", OURS + "/api/token",
    "/var/run/secrets/kubernetes.io/serviceaccount/token", "/etc/rollout/order.json",
]

ADDRESSES = [
    ("127.0.0.1", 8443), ("mine-coordinator", 8443), ("169.254.169.254", 80),
    (os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes"), 443),
]


def attempt(ask):
    try:
        return ask()
    except OSError:
        return None


def processes():
    for one in pathlib.Path("/proc").iterdir():
        if one.name.isdigit():
            yield (attempt((one / "cmdline").read_bytes) or b"").decode()


def loot():
    got = [path for path in CLOSED if attempt(lambda: open(path).read(1)) is not None]
    got += [line for line in processes() if "coordinator" in line or "entrypoints.pod" in line]
    got += [name for name in os.environ if "DSN" in name or name.startswith("ROLLOUT_POD")]
    got += [path for path in ("/var/cache/rollout", RUN, "/opt", RUN + "/code") if attempt(lambda: write(path))]
    got += [str(place) for place in ADDRESSES if attempt(lambda: socket.create_connection(place, 5)) is not None]
    got += [str(kind) for kind in socket.AddressFamily if kind != socket.AF_UNIX and attempt(lambda: socket.socket(kind, socket.SOCK_DGRAM))]
    if os.getuid() in (0, 10001) or os.environ.get("MY_SECRET") != "mine" or os.environ.get("MY_PLACE") != "here":
        got.append(f"user {os.getuid()} secret {os.environ.get('MY_SECRET')} place {os.environ.get('MY_PLACE')}")
    return got


def write(folder):
    pathlib.Path(folder, "written").write_text("x")
    return True


class Rows:
    digest = "blake3:mine"

    def __len__(self):
        return 8

    def rows(self, positions):
        refuse_loot()
        return [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in positions]


def refuse_loot():
    if got := loot():
        raise ValueError("LOOT " + json.dumps(got))


class Mine:
    def __init__(self, row):
        self.row = row

    def start(self):
        return self.row["prompt"]

    def step(self, reply):
        return True

    @classmethod
    def source(cls, split, seed):
        refuse_loot()
        return Rows()
"""
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "mine"},
    "stringData": {"key": "mine", "tracker": "wandb-mine"},
}
CODE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "code"},
    "data": {"mine.py": MINE},
}


def given(name: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "mine", "key": key}}}


RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "mine"},
    "spec": {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
        "model": {"uri": "rollout://tiny-adder"},
        "code": {"configMap": {"name": "code"}},
        "env": [
            {"name": "MY_PLACE", "value": "here"},
            given("MY_SECRET", "key"),
            given("WANDB_API_KEY", "tracker"),
        ],
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"python": {"module": "mine", "className": "Mine"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": 4},
            "maxSteps": 2,
        },
        "actors": {"engine": {"embedded": {}}},
    },
}


@pytest.fixture(scope="module")
def run(stage: Stage) -> WatchedRun:
    stage.kubectl.apply(SECRET, CODE)
    return stage.start(RUN)


@pytest.fixture(scope="module")
def variables(run: WatchedRun) -> str:
    """Of the coordinator's main process, as the kubelet started it."""
    run.until(lambda: run.step() >= 1, "a first step", END_SECONDS)
    return run.kubectl("exec", "mine-coordinator-0", "-c", "coordinator", "--", "env")


def test_the_coordinators_container_has_none_of_the_authors_variables(variables: str):
    assert "MY_SECRET" not in variables
    assert "MY_PLACE" not in variables
    assert "WANDB_API_KEY=wandb-mine" in variables


def test_a_run_trains_on_rows_of_code_that_finds_nothing(run: WatchedRun, variables: str):
    end = run.wait_for_end(END_SECONDS)
    assert end["reason"] == "Succeeded", run.condition("Ready")["message"]
