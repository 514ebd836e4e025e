"""A coordinator whose ledger is in Postgres: cut off from its server for a while, and replaced by another."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from coordinator_kit import IDENTITY, PLAN, FakeActor, FakeLearner, Rows, accuracy, wait_for_outcome

from cluster.control.ports import find_free_port
from rollout.coordinator.dispatcher import open_coordinator
from rollout.coordinator.server.in_process import serve_in_process
from rollout.errors import RolloutError
from rollout.ledger.opening import DSN_VARIABLE
from rollout.ledger.records import Limits
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.auth import read_token
from rollout.protocol.client import CoordinatorClient
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

sys.path.append(str(Path(__file__).parents[2] / "ledger"))

from postgres_server import make_server

pytestmark = pytest.mark.process

SPEC = {
    "model": {"uri": "rollout://tiny-qwen2"},
    "storage": {"ledger": {"postgres": {"secretRef": {"name": "ledger-dsn"}}}},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": 3,
    },
}


@pytest.fixture
def server():
    made = make_server()
    yield made
    made.close()


def test_workers_wait_while_the_server_is_away_and_the_run_goes_on(server, tmp_path):
    from rollout.ledger.postgres.executor import ExecutorSettings
    from rollout.ledger.postgres.ledger import PostgresLedger

    (tmp_path / "snapshots").mkdir()
    store = FilesystemStore(tmp_path / "objects")

    async def opened():
        ledger = PostgresLedger(
            server.dsn, IDENTITY, Limits(), ExecutorSettings(patience_seconds=0.2)
        )
        return await open_coordinator(
            PLAN, ledger, store, Rows(), snapshots=tmp_path / "snapshots", summarise=accuracy
        )

    with serve_in_process(opened) as client:
        learner, actor = FakeLearner(client, store), FakeActor(client)
        tasks = actor.claim().tasks
        server.stop()
        back = threading.Timer(2.0, server.start)
        back.start()
        actor.submit(*map(actor.play, tasks))
        back.join()
        assert client.status().outcome is None
        learner.commit(learner.ask(wait=5.0))
        assert client.status().step == 1


class Pod:
    """A coordinator with nothing of its own but a folder for logs."""

    def __init__(self, folder: Path, dsn: str) -> None:
        folder.mkdir()
        (folder / "token").write_text("secret")
        self.folder, self.url = folder, f"http://127.0.0.1:{find_free_port()}"
        config = WorkerConfig(
            run=RunIdentity(name="arithmetic", uid="uid-1"),
            spec_digest="blake3:" + "0" * 64,
            spec=RolloutRunSpec.model_validate(SPEC),
            resolved=ResolvedRun(
                model_path=str(folder), model_digest="blake3:" + "1" * 64, dtype="Float32",
                prompt_tokens_max=16,
            ),
            layout=Layout(
                run_dir=str(folder), coordinator_url=self.url, token_file=str(folder / "token"),
                objects_dir=str(folder.parent / "objects"), ledger_path=str(folder / "ledger.db"),
            ),
            lease_seconds=5.0,
        )  # fmt: skip
        (folder / "worker.json").write_text(config.model_dump_json(by_alias=True))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollout.entrypoints.coordinator", "--config",
                 str(folder / "worker.json")],
                env={**os.environ, DSN_VARIABLE: dsn}, stdout=log, stderr=log,
            )  # fmt: skip

    def client(self, role: str, patience: float = 60.0) -> CoordinatorClient:
        token = read_token(self.folder / "token", role)
        return CoordinatorClient.connect(self.url, token, patience_seconds=patience)


def test_another_coordinator_takes_over_with_nothing_but_the_database(server, tmp_path):
    store = FilesystemStore(tmp_path / "objects")
    old = Pod(tmp_path / "old", server.dsn)
    learner, actor = FakeLearner(old.client("learner"), store), FakeActor(old.client("actor"))
    actor.submit(*map(actor.play, actor.claim().tasks))
    learner.commit(learner.ask(wait=5.0))
    new = Pod(tmp_path / "new", server.dsn)
    control = new.client("operator")
    assert control.status().step == 1
    # The old one learns of it with its next write, and ends.
    with pytest.raises(RolloutError):
        FakeActor(old.client("actor", 2.0))
    assert old.process.wait(60) == 1
    assert "another coordinator" in (old.folder / "log").read_text()
    learner, actor = FakeLearner(new.client("learner"), store), FakeActor(new.client("actor"))
    end = time.monotonic() + 240
    while control.status().outcome is None and time.monotonic() < end:
        claimed = actor.claim(wait=0.5)
        if claimed.tasks:
            actor.submit(*map(actor.play, claimed.tasks))
        batch = learner.ask(wait=0.5)
        if batch.stop is not None:
            learner.finish()
        elif batch.waiting is None:
            learner.commit(batch)
    assert wait_for_outcome(control).kind == "Succeeded"
    assert not list(tmp_path.rglob("ledger.db*"))
    new.process.terminate()
    assert new.process.wait(30) == 0
