"""Tiny runs whose completions are really sampled: coordinator, learner and an actor with its engine in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout.actor.loop import Actor
from rollout.actor.task_scoring import build_task_scoring
from rollout.coordinator.build import open_from_config
from rollout.coordinator.server.in_process import serve_in_process
from rollout.entrypoints.actor import build_parts as build_actor
from rollout.errors import RolloutError
from rollout.learner.build import build_parts
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.protocol.client import CoordinatorClient
from rollout_api.worker import WorkerConfig


def record_sampled(config: WorkerConfig) -> None:
    """Run to the end with a real actor."""
    folder = Path(config.layout.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.json").write_text(config.model_dump_json(exclude_none=True))
    apply_numerics(threads=1, exact=True)
    with serve_in_process(lambda: open_from_config(config)) as client, _acting(config, client):
        parallel = Parallel()
        session = Session(client, "learner", parallel)
        started = session.start(1, "here")
        parts = build_parts(config, build_settings(config), parallel, session)
        run_learner(parts, started, Watch())


@contextmanager
def _acting(config: WorkerConfig, client: CoordinatorClient) -> Iterator[None]:
    judges = build_task_scoring(config)
    judges.start()
    actor = threading.Thread(
        target=_act, args=(Actor(build_actor(config, 0, client, judges)),), daemon=True
    )
    actor.start()
    try:
        yield
    finally:
        actor.join(30)
        judges.close()


def _act(actor: Actor) -> None:
    try:
        asyncio.run(actor.run())
    except RolloutError:
        return
