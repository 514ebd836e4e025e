"""The entry point against a served coordinator: finishes, fails for good, and runs under torchrun."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from plans import run_plan

from rollout.common.parent_death import tied_argv
from rollout.coordinator.dispatcher import open_coordinator
from rollout.coordinator.server.app import build_app
from rollout.coordinator.server.callers import SecretCallers
from rollout.entrypoints import learner
from rollout.errors import RunFailed, SpecError
from rollout.learner.config.ranks import plan_ranks
from rollout.learner.loop import Watch
from rollout.learner.model.parallel import Parallel
from rollout.ledger.records import RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.types import SamplingParams
from rollout_api.worker import WorkerConfig

SECRET = "secret"
DIGEST = "blake3:" + "0" * 64
PLAN = run_plan(
    name="r",
    uid="u",
    tasks_per_step=4,
    num_samples=1,
    sampling=SamplingParams(max_new_tokens=4),
    offline=True,
    steps_max=3,
    lease_seconds=30.0,
    heartbeat_seconds=0.2,
)


class Rows:
    def train(self, ordinals):
        return [
            {"messages": [{"role": "user", "content": f"{n}+{n}="}], "answer": str(2 * n)}
            for n in ordinals
        ]

    def evaluation(self, name, split, positions):
        return []


@contextmanager
def served(folder: Path):
    """A coordinator over HTTP; gives its address and a control client."""
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(SECRET)
    identity = RunIdentity(uid="u", name="r", spec_digest=DIGEST)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def do(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def start():
        coordinator = await open_coordinator(
            PLAN,
            SqliteLedger(folder / "ledger.db", identity),
            FilesystemStore(folder / "objects"),
            Rows(),
            snapshots=folder / "snapshots",
            summarise=lambda _: {},
        )
        runner = web.AppRunner(build_app(coordinator, SecretCallers(SECRET)), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return coordinator, runner, runner.addresses[0][1]

    coordinator, runner, port = do(start())
    url = f"http://127.0.0.1:{port}"
    try:
        yield url, CoordinatorClient.connect(url, token_for(SECRET, "operator"))
    finally:
        do(coordinator.close())
        do(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)


def write_config(folder: Path, url: str, model_path: Path, **spec: Any) -> Path:
    train = {
        "algorithm": {"sft": {"batchSize": 4}},
        "data": {"jsonl": {"uri": "unused.jsonl"}},
        **spec.pop("train", {}),
    }
    config = {
        "run": {"name": "r", "uid": "u"},
        "specDigest": DIGEST,
        "spec": {"model": {"uri": "rollout://tiny-qwen2"}, "train": train, **spec},
        "resolved": {
            "modelPath": str(model_path),
            "modelDigest": DIGEST,
            "dtype": "Float32",
            "promptTokensMax": 16,
        },
        "layout": {
            "runDir": str(folder),
            "coordinatorUrl": url,
            "tokenFile": str(folder / "token"),
            "objectsDir": str(folder / "objects"),
            "ledgerPath": str(folder / "ledger.db"),
        },
    }
    path = folder / "worker.json"
    path.write_text(WorkerConfig.model_validate(config).model_dump_json())
    return path


def live(path: Path, url: str) -> None:
    """The process' main part, in this process."""
    config = WorkerConfig.model_validate_json(path.read_bytes())
    client = CoordinatorClient.connect(url, token_for(SECRET, "learner"))
    learner._live(config, Parallel(), client, Watch())


def test_it_trains_to_the_last_step_and_says_so(tmp_path, model_path) -> None:
    with served(tmp_path) as (url, control):
        live(write_config(tmp_path, url, model_path), url)
        status = control.status()
    assert status.step == 3
    assert status.chain.startswith("blake3:")


def test_a_manifest_it_cannot_do_ends_the_run_with_the_field(tmp_path, model_path) -> None:
    with served(tmp_path) as (url, control):
        train = {"schedule": {"linear": {}}, "maxSteps": None}
        with pytest.raises(SpecError, match="horizonSteps"):
            live(write_config(tmp_path, url, model_path, train=train), url)
        outcome = control.status().outcome
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == ("Failed", "SpecError")
    assert "horizonSteps" in outcome.message


def test_a_loss_that_is_not_finite_ends_the_run_with_step_and_parameter(
    tmp_path, model_path
) -> None:
    # The rate of the first step throws the weights so far that the second cannot be computed.
    train = {"optimizer": {"sgd": {}}, "maxGradNorm": "0"}
    with served(tmp_path) as (url, control):
        path = write_config(tmp_path, url, model_path, train=train)
        config = WorkerConfig.model_validate_json(path.read_bytes())
        huge = config.spec.train.optimizer.sgd.model_copy(update={"learning_rate": 1e30})
        optimizer = config.spec.train.optimizer.model_copy(update={"sgd": huge})
        wild = config.spec.train.model_copy(update={"optimizer": optimizer})
        spec = config.spec.model_copy(update={"train": wild})
        client = CoordinatorClient.connect(url, token_for(SECRET, "learner"))
        with pytest.raises(RunFailed, match=r"step 2: the gradient of .* is not finite"):
            learner._live(config.model_copy(update={"spec": spec}), Parallel(), client, Watch())
        status = control.status()
    assert status.step == 1
    assert status.outcome.reason == "RunFailed"


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_real_processes_train_to_the_end(tmp_path, model_path, ranks) -> None:
    with served(tmp_path) as (url, control):
        learner_spec = {"processesPerNode": ranks}
        path = write_config(tmp_path, url, model_path, learner=learner_spec)
        module, arguments = plan_ranks(str(path), ranks)
        done = subprocess.run(
            tied_argv(module, *arguments),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert control.status().step == 3
