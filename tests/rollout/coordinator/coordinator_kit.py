"""A small run to coordinate: fake rows, real ledger, real object store, workers as plain functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plans import run_plan

from rollout.coordinator.dispatcher import Coordinator, open_coordinator
from rollout.coordinator.plan import EvaluationPlan, RunPlan
from rollout.coordinator.server.callers import Callers, SecretCallers
from rollout.coordinator.server.in_process import serve_in_process
from rollout.coordinator.server.load import Load
from rollout.coordinator.settings import SettingsResolver, StepsResolver
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.tls import Certificate
from rollout.types import Row, SamplingParams, Trajectory, VersionSpan, WeightVersion

IDENTITY = RunIdentity(uid="uid-1", name="arithmetic", spec_digest="blake3:" + "0" * 64)
SAMPLING = SamplingParams(max_new_tokens=4)
PLAN = run_plan(
    name="arithmetic",
    uid="uid-1",
    tasks_per_step=2,
    num_samples=2,
    sampling=SAMPLING,
    steps_max=3,
    lease_seconds=5.0,
    heartbeat_seconds=0.5,
)
HELDOUT = EvaluationPlan(
    name="heldout",
    split="selection",
    num_prompts=2,
    samples_per_prompt=1,
    sampling=replace(SAMPLING, temperature=0.0),
    at_start=True,
    every_steps=2,
    selects=True,
)


class Rows:
    """Row n asks n + n."""

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        return [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in ordinals]

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        return [{"prompt": f"{name}/{split}/{n}", "answer": str(n)} for n in positions]


def accuracy(rewards: Sequence[Sequence[float]]) -> dict[str, Any]:
    mean = sum(sum(sample) / len(sample) for sample in rewards) / len(rewards)
    return {"accuracy": {"value": mean, "low": mean, "high": mean}}


class Recorder:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, Any]]] = []

    def log(self, step: int, metrics: Any) -> None:
        self.seen.append((step, dict(metrics)))

    def close(self, outcome=None) -> None:
        pass


@dataclass(slots=True)
class HeldClock:
    """Whole seconds that stand still, so that bounds are met exactly; the run's start lies before them."""

    now: float

    def __call__(self) -> float:
        return self.now


class Bench:
    """A run's folder; ``start`` gives a client of a new coordinator life, ``stop`` ends that life."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FilesystemStore(folder / "objects")
        self.tracker = Recorder()
        self.coordinator: Coordinator | None = None
        self._stack = ExitStack()
        (folder / "snapshots").mkdir(exist_ok=True)

    def start(
        self,
        plan: RunPlan = PLAN,
        limits: Limits | None = None,
        resolver: SettingsResolver | None = None,
    ) -> CoordinatorClient:
        self.stop()

        async def opened() -> Coordinator:
            ledger = SqliteLedger(self.folder / "ledger.db", IDENTITY, limits)
            self.coordinator = await open_coordinator(
                plan,
                ledger,
                self.store,
                Rows(),
                snapshots=self.folder / "snapshots",
                summarise=accuracy,
                resolver=resolver or StepsResolver(begun=plan, opened=[self.tracker]),
            )
            return self.coordinator

        return self._stack.enter_context(serve_in_process(opened))

    def hold_clock(self) -> HeldClock:
        """From here on the run's time goes on by the test's word only."""
        run = self.coordinator.run
        run.clock = held = HeldClock(now=float(math.ceil(run.clock())))
        return held

    def stop(self) -> None:
        self._stack.close()
        self._stack = ExitStack()

    def reader(self) -> LedgerReader:
        return LedgerReader(self.folder / "ledger.db")

    close = stop


class FakeActor:
    """Answers every task; ``reward`` decides from (task, sample)."""

    def __init__(self, client: CoordinatorClient, index: int = 0, reward: Any = None) -> None:
        self.client, self.name = client, f"actor-{index}"
        self.reward = reward or (lambda task, sample: float(sample % 2))
        self.incarnation = 0
        self.incarnation = self.call(routes.REGISTER, m.Register()).incarnation

    def call(self, route: Any, ask: Any) -> Any:
        return self.client.as_worker(self.name, self.incarnation).call(route, ask)

    def claim(
        self, tasks_max: int = 64, wait: float = 0.0, held: tuple[str, ...] = ()
    ) -> m.Claimed:
        ask = m.Claim(tasks_max=tasks_max, held=held, wait_seconds=wait)
        return self.call(routes.CLAIM, ask)

    def play(self, task: m.Task) -> m.TaskResult:
        made = tuple(
            make_trajectory(task, sample, self.reward(task, sample))
            for sample in range(task.num_samples)
        )
        return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=made)

    def submit(self, *results: m.TaskResult) -> m.Submitted:
        return self.call(routes.SUBMIT, m.Submit(results=results))

    def work(self, wait: float = 0.0) -> int:
        """Claim once, answer everything; returns how many tasks that was."""
        tasks = self.claim(wait=wait).tasks
        if tasks:
            done = self.submit(*map(self.play, tasks))
            assert all(done.accepted), done.reasons
        return len(tasks)

    def fail(self, task: m.Task, kind: str = "infrastructure") -> m.Submitted:
        failure = m.Failure(kind=kind, message=f"{kind} trouble with {task.task_id}")
        return self.submit(m.TaskResult(task_id=task.task_id, epoch=task.epoch, failure=failure))


def make_trajectory(task: m.Task, sample: int, reward: float) -> Trajectory:
    version = task.version
    return Trajectory(
        ordinal=task.ordinal,
        sample=sample,
        prompt_ids=(1, 2, 3),
        token_ids=(5, 6 + sample),
        actor_logprobs=(-0.1, -0.2),
        loss_mask=(1, 1),
        spans=(VersionSpan(start=0, end=2, lineage=version.lineage, step=version.step),),
        rewards={"exact-match": reward},
        reward=reward,
        ending="stop",
        text=str(sample),
        prompt_text=str(task.row["prompt"]),
    )


class FakeLearner:
    """Commits what it is given; its weights are the bytes of the step's number."""

    def __init__(self, client: CoordinatorClient, store: FilesystemStore) -> None:
        self.client, self.store, self.name = client, store, "learner"
        self.incarnation = 0
        self.started = self.call(routes.START, m.LearnerStart())
        self.incarnation = self.started.incarnation
        self.step, self.lineage = self.started.committed_step, self.started.lineage
        if self.started.initial is None:
            first = m.PublishInitial(version=self.version(0), chain="c0")
            self.call(routes.PUBLISH_INITIAL, first)

    def call(self, route: Any, ask: Any) -> Any:
        return self.client.as_worker(self.name, self.incarnation).call(route, ask)

    def version(self, step: int, salt: str = "") -> WeightVersion:
        digest = self.store.put(f"weights of {self.lineage}/{step}{salt}".encode())
        return WeightVersion(lineage=self.lineage, step=step, digest=digest, object=digest)

    def ask(self, wait: float = 0.0) -> m.Batch:
        return self.call(routes.BATCH, m.BatchRequest(step=self.step + 1, wait_seconds=wait))

    def build_commit(self, batch: m.Batch, **changes: Any) -> m.Commit:
        assert batch.cursor is not None, batch
        values: dict[str, Any] = {
            "step": batch.step,
            "lineage": self.lineage,
            "consumed": tuple(name for group in batch.ids for name in group),
            "plan": {},
            "version": self.version(batch.step),
            "chain": f"c{self.lineage}-{batch.step}",
            "cursor": batch.cursor,
            "metrics": {"reward": 0.5, "loss": 0.1},
            "phase_seconds": {"forward": 0.01},
        }
        return m.Commit(**{**values, **changes})

    def commit(self, batch: m.Batch, **changes: Any) -> m.Committed:
        done = self.call(routes.COMMIT, self.build_commit(batch, **changes))
        self.step = batch.step
        return done

    def anchor(self) -> None:
        version = self.version(self.step)
        manifest = m.AnchorManifest(
            name=f"step-{self.step:06d}",
            lineage=self.lineage,
            step=self.step,
            chain=f"c{self.lineage}-{self.step}",
            version=version,
            objects={"weights": version.object, "optimizer": self.store.put(b"o%d" % self.step)},
        )
        self.call(routes.ANCHOR, m.AnchorSaved(manifest=manifest))

    def finish(self) -> None:
        self.anchor()
        self.call(routes.LEARNER_OUTCOME, m.Outcome(ok=True))


def run_to_end(actor: FakeActor, learner: FakeLearner, *, seconds: float = 120.0) -> m.Batch:
    """Alternate until the learner is told to stop; returns that answer."""
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        actor.work()
        batch = learner.ask()
        if batch.stop is not None:
            return batch
        if batch.waiting is None:
            learner.commit(batch)
    raise AssertionError("the run did not end")


def wait_for_outcome(client: CoordinatorClient, seconds: float = 60.0) -> Any:
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = client.status()
        if status.outcome is not None:
            return status.outcome
        time.sleep(0.02)
    raise AssertionError(f"no outcome: {client.status()}")


class HttpServer:
    """A bench's coordinator behind a real socket, on a thread of its own."""

    def __init__(
        self,
        bench: Bench,
        secret: str = "",
        plan: RunPlan = PLAN,
        port: int = 0,
        *,
        callers: Callers | None = None,
        certificate: Certificate | None = None,
        load: Load | None = None,
    ) -> None:
        import asyncio
        import threading

        from aiohttp import web

        from rollout.coordinator.server.app import build_app

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def opened() -> int:
            ledger = SqliteLedger(bench.folder / "ledger.db", IDENTITY)
            self.coordinator = await open_coordinator(
                plan,
                ledger,
                bench.store,
                Rows(),
                snapshots=bench.folder / "snapshots",
                summarise=accuracy,
            )
            app = build_app(self.coordinator, callers or SecretCallers(secret), load=load)
            self._runner = web.AppRunner(app)
            await self._runner.setup()
            tls = None if certificate is None else certificate.context
            site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True, ssl_context=tls)
            await site.start()
            return self._runner.addresses[0][1]

        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._do(opened())}"

    def _do(self, work: Any) -> Any:
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def close(self) -> None:
        async def closed() -> None:
            await self.coordinator.close()
            await self._runner.cleanup()

        self._do(closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
