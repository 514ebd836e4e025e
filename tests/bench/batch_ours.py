"""Our side of the batch: whole inference runs, one a turn, on one vLLM server that outlives them.

The coordinator and what publishes the model are the run's own processes, this one is its actor. A turn's time is
from the version's load, which both sides have behind them, to the written results and the order to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from one_process import plan_config
from turns import Turns

from rollout.actor.loop import Actor
from rollout.actor.task_scoring import build_task_scoring
from rollout.common.child_processes import end_processes, start_process
from rollout.coordinator.batch_run import build_batch_rows
from rollout.data.rows.mapping import row_messages
from rollout.engines.registry import build_engine
from rollout.entrypoints.actor import build_parts
from rollout.protocol.client import CoordinatorClient
from rollout.rendering import build_renderer
from rollout.runs.run_dir import RunDir, prepare_run_dir
from rollout.seams import Engine, SampleProgress
from rollout.supervisor.launch import observe_machine, write_config
from rollout.supervisor.processes import plan_processes
from rollout.types import Completion, GenerateRequest, WeightVersion
from rollout_api.worker import WorkerConfig

GRACE_SECONDS = 10.0


class KeptEngine:
    """The server of all runs: none of them stops it, and a load waits behind itself until the turn begins."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.loaded, self.go = asyncio.Event(), asyncio.Event()

    @property
    def version(self) -> WeightVersion | None:
        """The version that is served."""
        return self._engine.version

    async def start(self) -> None:
        """It was started."""

    async def load(
        self, version: WeightVersion, weights: Path, changed: frozenset[str] | None = None
    ) -> str:
        """Load, say so, and wait for the turn."""
        digest = await self._engine.load(version, weights, changed)
        self.loaded.set()
        await self.go.wait()
        return digest

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """As the engine does."""
        return await self._engine.generate(requests)

    def interrupt(self) -> None:
        """As the engine does."""
        self._engine.interrupt()

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """As the engine does."""
        return self._engine.progress()

    async def stop(self) -> None:
        """The next run needs it."""


async def main(job: Path, scratch: Path, turns: Turns) -> None:
    """A run each turn, a small one first, until told to end."""
    whole, warm = (plan_config(job / f"{name}.json", scratch) for name in ("whole", "warm"))
    engine = build_engine(whole, "actor-0")
    await engine.start()
    said: dict[str, Any] = {"weights": whole.resolved.model_digest, "first_tokens": first(whole)}
    number = 0
    while True:
        run = prepare_run_dir(scratch / f"run-{number}")
        kept = KeptEngine(engine)
        async with _begun(_of_run(whole if number else warm, run), run, kept) as acting:
            turns.say(**said)
            await asyncio.to_thread(turns.start)
            began, cpu = time.perf_counter(), tree_cpu_seconds()
            kept.go.set()
            await acting
            said = {
                "seconds": time.perf_counter() - began,
                "tree_cpu_seconds": tree_cpu_seconds() - cpu,
                **count(run.path / "results" / "results.jsonl"),
            }
        shutil.rmtree(run.path)
        number += 1


@contextlib.asynccontextmanager
async def _begun(
    config: WorkerConfig, run: RunDir, kept: KeptEngine
) -> AsyncIterator[asyncio.Task[None]]:
    """The actor of a run that has loaded its version; the other processes beside it."""
    write_config(run, config)
    others = [
        start_process(one)
        for one in plan_processes(config.spec, run, observe_machine())
        if one.role != "actor"
    ]
    scoring, client = build_task_scoring(config), CoordinatorClient.open(config, "actor")
    try:
        scoring.start()
        parts = build_parts(config, 0, client, scoring)
        stage = replace(parts.stage, engine=kept)
        acting = asyncio.create_task(Actor(replace(parts, stage=stage)).run())
        loading = asyncio.create_task(kept.loaded.wait())
        await asyncio.wait({acting, loading}, return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            acting.result()
            raise RuntimeError(f"the run ended before it began: see {run.logs}")
        yield acting
    finally:
        scoring.close()
        client.close()
        end_processes(others, grace_seconds=GRACE_SECONDS)


def _of_run(config: WorkerConfig, run: RunDir) -> WorkerConfig:
    """The same run anew, in a folder and at a port of its own."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    places = {
        "run_dir": str(run.path),
        "objects_dir": str(run.objects),
        "ledger_path": str(run.ledger),
        "token_file": str(run.token),
        "coordinator_url": f"http://127.0.0.1:{port}",
    }
    named = config.run.model_copy(update={"uid": str(uuid.uuid4())})
    layout = config.layout.model_copy(update=places)
    return config.model_copy(update={"run": named, "layout": layout})


def prompts(config: WorkerConfig) -> list[tuple[list[int], int]]:
    """Token ids of every row as our actor renders them, and the most new tokens it may have."""
    renderer = build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template)
    rows = build_batch_rows(config).source
    return [
        (list(renderer.render_prompt(row_messages(row))), row["sampling"]["max_new_tokens"])
        for row in rows.rows(range(len(rows)))
    ]


def first(config: WorkerConfig) -> list[int]:
    """Those of the first row."""
    return prompts(config)[0][0]


def count(results: Path) -> dict[str, int]:
    """Rows, and tokens that were drawn."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    usage = [line["response"]["body"]["usage"]["completion_tokens"] for line in lines]
    return {"rows": len(lines), "tokens": sum(usage)}


def tree_cpu_seconds() -> float:
    """Processor time of this process and of all that it started and that lives."""
    me = psutil.Process()
    times = []
    for one in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(one.cpu_times())
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rb-") as name:
        asyncio.run(main(Path(sys.argv[1]), Path(name), Turns()))
