"""Tiny runs recorded in this process: real coordinator, ledger and learner, an actor that makes tokens up."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollout.coordinator.build import open_from_config
from rollout.coordinator.server.in_process import serve_in_process
from rollout.errors import RolloutError
from rollout.learner.build import build_parts
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.runs.identity import spec_digest
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.types import Trajectory, VersionSpan
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

DIGEST = "blake3:" + "0" * 64
GRPO: dict[str, Any] = {
    "algorithm": {"grpo": {"promptsPerStep": 3, "groupSize": 4}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 6},
    "optimizer": {"adamw": {"learningRate": "1e-3"}},
    "schedule": {"cosine": {"warmupSteps": 0, "horizonSteps": 20}},
    "maxSteps": 5,
}

Trajectories = Callable[[m.Task, int], Trajectory]


def make_trajectory(task: m.Task, sample: int) -> Trajectory:
    """The same tokens for the same task, whatever the weights are."""
    draw = random.Random(task.ordinal * 100 + sample)
    length = draw.randint(1, 6)
    reward = float(draw.random() < 0.5)
    version = task.version
    return Trajectory(
        ordinal=task.ordinal,
        sample=sample,
        prompt_ids=(1, 2, 3 + task.ordinal),
        token_ids=tuple(draw.randrange(250) for _ in range(length)),
        actor_logprobs=tuple(-5.5 + draw.random() * 0.1 for _ in range(length)),
        loss_mask=(1,) * length,
        spans=(VersionSpan(start=0, end=length, lineage=version.lineage, step=version.step),),
        rewards={"exact-match": reward},
        reward=reward,
        ending="stop",
        text=f"said {task.ordinal}/{sample}",
    )


def build_config(folder: Path, model: Path, train: Mapping[str, Any]) -> WorkerConfig:
    """The configuration of a run in ``folder``, as a supervisor would write it."""
    data = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "tiny"},
        "spec": {
            "seed": 7,
            "model": {"uri": model.as_uri(), "chatTemplate": "plain"},
            "train": train,
            "snapshots": {"everySteps": 2},
        },
    }
    spec = prepare_run(Document(source=str(folder / "run.yaml"), data=data, lines={})).spec
    return WorkerConfig(
        run=RunIdentity(name="tiny", uid="u"),
        spec_digest=spec_digest(spec, model_digest=DIGEST, data_digests={}, dtype="Float32"),
        spec=spec,
        resolved=ResolvedRun(
            model_path=str(model), model_digest=DIGEST, dtype="Float32", prompt_tokens_max=16
        ),
        layout=Layout(
            run_dir=str(folder),
            coordinator_url="http://127.0.0.1:1",
            token_file=str(folder / "token"),
            objects_dir=str(folder / "objects"),
            ledger_path=str(folder / "ledger.db"),
        ),
    )


def record(config: WorkerConfig, make: Trajectories = make_trajectory) -> None:
    """Run to the end, or go on to it; raises what the learner raises."""
    folder = Path(config.layout.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.json").write_text(config.model_dump_json(exclude_none=True))
    apply_numerics(threads=1, exact=True)
    with serve_in_process(lambda: open_from_config(config)) as client, acting(client, make):
        parallel = Parallel()
        session = Session(client, "learner", parallel)
        started = session.start(1, "here")
        parts = build_parts(config, build_settings(config), parallel, session)
        run_learner(parts, started, Watch())


@contextmanager
def acting(client: CoordinatorClient, make: Trajectories) -> Iterator[None]:
    """An actor that answers every task for as long as the block lasts."""
    over = threading.Event()
    actor = threading.Thread(target=_act, args=(client, make, over), daemon=True)
    actor.start()
    try:
        yield
    finally:
        over.set()
        actor.join(60)


def _act(client: CoordinatorClient, make: Trajectories, over: threading.Event) -> None:
    client = client.as_worker("actor-0")
    client = client.as_worker("actor-0", client.call(routes.REGISTER, m.Register()).incarnation)
    while not over.is_set():
        ask = m.Claim(tasks_max=8, wait_seconds=0.1)
        try:
            claimed = client.call(routes.CLAIM, ask)
            results = tuple(_answer(task, make) for task in claimed.tasks)
            if results:
                client.call(routes.SUBMIT, m.Submit(results=results))
        except RolloutError:
            return
        if claimed.stop:
            return


def _answer(task: m.Task, make: Trajectories) -> m.TaskResult:
    made = tuple(make(task, sample) for sample in range(task.num_samples))
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=made)


def change_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit a run's worker.json as somebody with an editor would."""
    path = folder / "worker.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file and folder with its content and the time it was last changed."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }
