"""The real entry point, killed with SIGKILL while workers go on: nothing is lost, nothing is repeated."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from coordinator_kit import FakeActor, FakeLearner, wait_for_outcome

from cluster.control.ports import find_free_port
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.auth import read_token
from rollout.protocol.client import CoordinatorClient
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

STEPS, PROMPTS, SAMPLES = 12, 4, 2
SPEC = {
    "model": {"uri": "rollout://tiny-qwen2"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": PROMPTS, "groupSize": SAMPLES}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": STEPS,
    },
    "evaluations": [
        {
            "name": "heldout",
            "suite": {"builtin": {"name": "arithmetic"}},
            "maxPrompts": 5,
            "atStart": True,
            "everySteps": 5,
            "selects": True,
        }
    ],
}


class Process:
    """``python -m rollout.entrypoints.coordinator``, startable again and again."""

    def __init__(self, folder):
        self.folder = folder
        self.url = f"http://127.0.0.1:{find_free_port()}"
        (folder / "token").write_text("secret")
        self.config = WorkerConfig(
            run=RunIdentity(name="arithmetic", uid="uid-1"),
            spec_digest="blake3:" + "0" * 64,
            spec=RolloutRunSpec.model_validate(SPEC),
            resolved=ResolvedRun(
                model_path=str(folder),
                model_digest="blake3:" + "1" * 64,
                dtype="Float32",
                prompt_tokens_max=16,
            ),
            layout=Layout(
                run_dir=str(folder),
                coordinator_url=self.url,
                token_file=str(folder / "token"),
                objects_dir=str(folder / "objects"),
                ledger_path=str(folder / "ledger.db"),
            ),
            lease_seconds=5.0,
        )
        (folder / "worker.json").write_text(self.config.model_dump_json(by_alias=True))
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "rollout.entrypoints.coordinator"]
        with (self.folder / "coordinator.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.folder / "worker.json")], stdout=log, stderr=log
            )

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        return self.process.wait(30)

    def client(self, role):
        token = read_token(self.folder / "token", role)
        return CoordinatorClient.connect(self.url, token, patience_seconds=60.0)


@pytest.fixture
def server(tmp_path):
    made = Process(tmp_path)
    made.start()
    yield made
    if made.process.poll() is None:
        made.kill()


def act(actor):
    while True:
        claimed = actor.claim(wait=2.0)
        if claimed.stop:
            return
        if claimed.tasks:
            actor.submit(*map(actor.play, claimed.tasks))


def learn(learner):
    while True:
        batch = learner.ask(wait=2.0)
        if batch.stop is not None:
            learner.finish()
            return
        if batch.waiting is None:
            learner.commit(batch)
            time.sleep(0.02)


@pytest.mark.process
def test_a_run_whose_coordinator_is_killed_four_times_keeps_its_books(server):
    store = FilesystemStore(server.folder / "objects")
    learner = FakeLearner(server.client("learner"), store)
    actor = FakeActor(server.client("actor"))
    threads = [
        threading.Thread(target=act, args=(actor,), daemon=True),
        threading.Thread(target=learn, args=(learner,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    draw, control = random.Random(7), server.client("operator")
    for kill in range(4):
        while control.status().step < 1 + 2 * kill:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.05))
        server.kill()
        server.start()
    assert wait_for_outcome(control, 240.0).kind == "Succeeded"
    for thread in threads:
        thread.join(60.0)
    assert server.kill(signal.SIGTERM) == 0
    with LedgerReader(server.folder / "ledger.db") as ledger:
        ordinals = [
            view.trajectory.ordinal for step in range(1, STEPS + 1) for view in ledger.samples(step)
        ]
        assert ordinals == [n // SAMPLES for n in range(STEPS * PROMPTS * SAMPLES)]
        assert ledger.dispositions() == {"consumed": len(ordinals), "pending": 0}
        done = [(e.step, e.num_prompts) for e in ledger.evaluations()]
        assert done == [(0, 5), (5, 5), (10, 5), (12, 5)]
    lines = (server.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == STEPS + 1


@pytest.mark.process
def test_a_coordinator_with_a_damaged_ledger_says_so_and_ends(server):
    FakeActor(server.client("actor"))
    server.kill(signal.SIGTERM)
    (server.folder / "ledger.db").write_bytes(b"not a ledger" * 1000)
    server.start()
    assert server.process.wait(60) == 1
    assert "is damaged" in (server.folder / "coordinator.log").read_text()
