"""The actor's loop: claim, activate, play, score, submit, until the coordinator says stop.

The coordinator may be down (its client waits and repeats), the engine may fail (the tasks go back: as
infrastructure failures, or untried when the weights could not be loaded), this process may be told to
leave (what is in hand goes to another actor as it is) or killed (its leases run out). Nothing here is
kept that the next process could not make again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from rollout.actor.episodes import Score
from rollout.actor.feeding import Feeding, WaterMarks
from rollout.actor.finishing import Finishing
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.pace import Pace
from rollout.actor.parts import Plugins
from rollout.actor.runner import RETURNED, PlayedTask, RunnerParts, play_each
from rollout.actor.submitting import count_tokens, finish_task, hand_over, plan_submits
from rollout.actor.weight_loader import Loaded, WeightLoader
from rollout.common.duties import Duty, work_beside
from rollout.common.grace_period import working_seconds
from rollout.engines.shared_device import DeviceUse, OwnDevice
from rollout.errors import EngineError
from rollout.ledger.records import FailureKind
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import (
    Activation,
    Claim,
    Claimed,
    Failure,
    Heartbeat,
    Register,
    Submit,
    Task,
    TaskProgress,
    TaskResult,
)
from rollout.seams import WeightSource
from rollout.types import WeightVersion

log = logging.getLogger(__name__)

CLAIM_WAIT_SECONDS = 10.0
"""How long one claim waits at the coordinator; then it is asked again."""
LEAVE_SECONDS = 1.0
"""How long a leaving actor still waits for a claim that is on its way."""
EVALUATION_TASKS_MAX = 256
"""Groups to claim at once while nothing but evaluations is handed out: they are many and short."""
OFF_LOOP_TOKENS = 32_768
"""Results with more tokens than this are measured in a thread."""
NOTE_MAX = 2000
"""Characters of what is said of plugins."""
ENGINE_FAILURES_MAX = 3
"""Engine failures in a row before this process ends, to be started afresh."""

T = TypeVar("T")
Judge = Callable[[Sequence[TaskResult]], list[TaskResult]]


class Scorer(Protocol):
    """Rewards of tasks whose episodes have ended."""

    async def score(
        self, played: Sequence[PlayedTask]
    ) -> Sequence[tuple[Score | Failure, ...] | Failure]:
        """For each task: one score per episode, or why it was lost; or the failure of a reward."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorParts:
    """What an actor is made of.

    ``tasks_max``: groups the engine batches well in one call. ``grace_seconds``: from the notice to leave
    to the kill that follows it. ``marks``: between which more groups are asked for while others are played; None:
    only when all have ended. ``plugins`` None: those of the run do not change. ``device``: whether the engine's is shared.
    """

    worker: str
    client: CoordinatorClient
    weights: WeightSource
    stage: RunnerParts
    scorer: Scorer
    tasks_max: int
    grace_seconds: float = 30.0
    marks: WaterMarks | None = None
    plugins: Plugins | None = None
    device: DeviceUse = field(default_factory=OwnDevice)


class Actor:
    """One incarnation of one actor; ``run`` once."""

    def __init__(self, parts: ActorParts) -> None:
        self._parts = parts
        self._activator = WeightLoader(parts.stage.engine, parts.weights, self._report)
        self._client = parts.client.as_worker(parts.worker)
        self._incarnation = 0
        self._hand = HeldTasks(parts.stage.engine.interrupt)
        self._pace = Pace()
        self._waiting: tuple[Task, ...] = ()
        self._aside: tuple[Task, ...] = ()
        self._held: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._state = "starting"
        self._leaving = asyncio.Event()
        self._engine_failures = 0
        self._tasks_max = parts.tasks_max

    @property
    def incarnation(self) -> int:
        """As the coordinator gave it; 0 before it is registered."""
        return self._incarnation

    def leave(self) -> None:
        """Stop claiming, and be gone within the grace period. Idempotent.

        What is in hand goes to another actor as it is; where samples cannot go on elsewhere (Exact) it is
        finished as far as the time allows.
        """
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._parts.stage.keeps_prefixes:
            self._hand.return_all()
        else:
            seconds = working_seconds(self._parts.grace_seconds)
            asyncio.get_running_loop().call_later(seconds, self._hand.return_all)

    async def run(self) -> None:
        """Work until told to stop. Raises EngineError, Fenced or CoordinatorError when it cannot."""
        parts = self._parts
        registered = await asyncio.to_thread(self._client.call, routes.REGISTER, Register())
        self._incarnation = registered.incarnation
        self._client = self._client.as_worker(parts.worker, self._incarnation)
        duties: dict[str, Duty] = {"heartbeat": partial(self._beat, registered.heartbeat_seconds)}
        if parts.plugins is not None:
            duties["plugins"] = parts.plugins.watch
        try:
            await work_beside(self._work_until_stopped(), duties)
        finally:
            await parts.stage.engine.stop()
            await parts.device.leave()

    async def _work_until_stopped(self) -> None:
        self._state = "starting the engine"
        await self._parts.device.enter()
        await self._parts.stage.engine.start()
        while self._aside or not self._leaving.is_set():
            self._state = "waiting for tasks"
            aside, self._aside = self._aside, ()
            tasks = aside or await self._claim()
            self._held, self._lost = _ids(tasks), frozenset()
            self._hand.begin()
            if self._parts.plugins is not None:
                self._parts.plugins.take()
            batches = split_by_version(tasks)
            for number, batch in enumerate(batches, start=1):
                self._waiting = tuple(task for later in batches[number:] for task in later)
                await self._do(await self._wanted(batch))
            self._held = frozenset()
        await self._activator.settle()

    async def _claim(self) -> tuple[Task, ...]:
        """The next tasks; empty when there are none yet, or when it is time to go."""
        claimed = await self._ask_or_leave()
        if claimed is None:
            return ()
        marks = self._parts.marks
        most = EVALUATION_TASKS_MAX if marks is None else marks.high
        self._tasks_max = plan_tasks_max(claimed.tasks, self._parts.tasks_max, most)
        return claimed.tasks

    async def _ask_or_leave(self) -> Claimed | None:
        """One claim; where there is nothing to do now, the device is not held while it waits."""
        if self._parts.device.yields:
            claimed = await self._ask(self._tasks_max, 0.0)
            if claimed is None or claimed.stop or claimed.tasks:
                return claimed
            await self._parts.device.leave()
        return await self._ask(self._tasks_max, CLAIM_WAIT_SECONDS)

    async def _claim_more(self, number: int) -> tuple[Task, ...]:
        """Tasks that are there now, beside those in hand; empty when it is time to go."""
        if self._leaving.is_set():
            return ()
        claimed = await self._ask(number, 0.0, self._held)
        if claimed is None:
            return ()
        self._held |= _ids(claimed.tasks)
        return claimed.tasks

    async def _ask(
        self, tasks_max: int, wait_seconds: float, held: Iterable[str] = ()
    ) -> Claimed | None:
        """One claim; None when it is time to go and the answer takes long."""
        loaded = self._activator.verified
        ask = Claim(
            tasks_max=tasks_max,
            held=tuple(sorted(held)),
            loaded=None if loaded is None else (loaded.lineage, loaded.step),
            wait_seconds=wait_seconds,
        )
        claiming = asyncio.create_task(asyncio.to_thread(self._client.call, routes.CLAIM, ask))
        claimed = await unless(self._leaving, claiming, LEAVE_SECONDS)
        if claimed is not None and claimed.stop:
            log.info("told to stop: %s", claimed.reason)
            self._leaving.set()
        return claimed

    async def _wanted(self, tasks: Sequence[Task]) -> list[Task]:
        """Those of some tasks that are still to be done here; what is wanted elsewhere goes back."""
        mine = [task for task in tasks if not self._hand.is_dropped(task.task_id)]
        returned = [task for task in mine if self._hand.is_returned(task.task_id)]
        await self._hand_back([PlayedTask(task=task, failure=RETURNED) for task in returned])
        return [task for task in mine if task not in returned]

    async def _hand_back(self, given_up: Sequence[PlayedTask]) -> None:
        """Let another actor go on with these, now."""
        if not given_up:
            return
        log.info("handing back tasks=%d", len(given_up))
        await self._submit([hand_over(one) for one in given_up])

    async def _do(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            return
        # Weights that cannot be loaded say nothing about the tasks: no try of theirs is spent on it.
        kind: FailureKind = "returned"
        finishing = Finishing(self._finish)
        feeding = Feeding(tasks, self._parts.marks, self._claim_more, finishing)

        async def more(num_in_play: int) -> list[Task]:
            return await self._wanted(await feeding.more(num_in_play))

        try:
            self._state = "waiting for the device"
            await self._parts.device.enter()
            self._state = f"loading version {tasks[0].version.step}"
            await self._activator.activate(tasks[0].version)
            kind = "infrastructure"
            self._state = f"generating {len(tasks)} groups, version {tasks[0].version.step}"
            fed = None if self._parts.marks is None else more
            finishing.enter(tasks)
            await play_each(
                tasks, self._parts.stage, finishing.begin, self._hand, self._hand_back, fed
            )
            self._engine_failures = 0
            await finishing.settle()
        except EngineError as error:
            await finishing.settle()
            await self._engine_failed(feeding.left, error, kind)
        finally:
            await finishing.close()
            self._aside = (*self._aside, *feeding.aside)

    async def _finish(self, played: Sequence[PlayedTask], seconds: Sequence[float]) -> None:
        """Score and submit groups that have ended."""
        start = time.monotonic()
        self._state = f"scoring {len(played)} groups"
        scores = await self._parts.scorer.score(played)
        scoring = time.monotonic() - start
        plugins = None if self._parts.plugins is None else self._parts.plugins.digests
        await self._submit(
            [
                finish_task(one, score, {"generate": playing, "score": scoring}, plugins)
                for one, score, playing in zip(played, scores, seconds, strict=True)
            ],
            list if self._parts.plugins is None else self._parts.plugins.judge,
        )

    async def _engine_failed(
        self, tasks: Sequence[Task], error: EngineError, kind: FailureKind
    ) -> None:
        self._engine_failures += 1
        log.warning("engine failure=%s in_a_row=%d", error, self._engine_failures)
        failure = Failure(kind=kind, message=str(error))
        await self._submit(
            [TaskResult(task_id=task.task_id, epoch=task.epoch, failure=failure) for task in tasks]
        )
        if self._engine_failures >= ENGINE_FAILURES_MAX:
            raise error

    async def _submit(self, results: Sequence[TaskResult], judge: Judge = list) -> None:
        """Bring results to the coordinator, as ``judge`` leaves them, in as many calls as their size asks for."""
        for call in await _plan_calls(results):
            kept = tuple(one for one in judge(call.results) if one.task_id not in self._lost)
            if not kept:
                continue
            self._state = f"submitting {len(kept)} groups"
            ask = Submit(results=kept)
            answer = await asyncio.to_thread(self._client.call, routes.SUBMIT, ask)
            self._held -= {one.task_id for one in kept}
            for result, accepted, reason in zip(kept, answer.accepted, answer.reasons, strict=True):
                if not accepted:
                    log.warning("refused task=%s reason=%s", result.task_id, reason)

    async def _beat(self, seconds: float) -> None:
        """Renew the leases at the given interval, jittered; a coordinator that is down is waited for."""
        while True:
            ask = Heartbeat(
                task_ids=tuple(sorted(self._held)),
                state=self._state,
                progress=self._progress(),
                tokens_per_second=self._pace.tokens_per_second,
                plugins="" if self._parts.plugins is None else self._parts.plugins.note[:NOTE_MAX],
            )
            answer = await asyncio.to_thread(self._client.call, routes.ACTOR_HEARTBEAT, ask)
            self._lost |= frozenset(answer.lost)
            self._hand.drop(answer.lost)
            self._hand.give_back(answer.give_back)
            if answer.stop:
                self._stop()
            await asyncio.sleep(seconds * random.uniform(0.8, 1.0))

    def _stop(self) -> None:
        """The run ends, or is stopped to go on later."""
        self._leaving.set()
        if self._parts.stage.keeps_prefixes:
            self._hand.return_all()

    def _progress(self) -> tuple[TaskProgress, ...]:
        """How far this actor is with the tasks that are not about to be submitted."""
        drawn = self._hand.describe(self._parts.stage.engine.progress())
        self._pace.see(drawn, asyncio.get_running_loop().time())
        waiting = (
            TaskProgress(task_id=task.task_id, num_queued=task.num_samples)
            for task in self._waiting
        )
        return (*drawn, *waiting)

    def _report(self, loaded: Loaded) -> None:
        if not loaded.ok:
            log.warning("activation failed version=%s: %s", loaded.version.step, loaded.message)
        self._client.call(
            routes.ACTIVATION,
            Activation(
                version=loaded.version,
                digest=loaded.digest,
                ok=loaded.ok,
                seconds=loaded.seconds,
                message=loaded.message,
                num_rebuilt=self._parts.weights.num_rebuilt,
            ),
        )


async def _plan_calls(results: Sequence[TaskResult]) -> list[Submit]:
    """The calls that carry the results; many are measured in a thread, so that heartbeats keep flowing."""
    if count_tokens(results) <= OFF_LOOP_TOKENS:
        return list(plan_submits(results))
    return await asyncio.to_thread(lambda: list(plan_submits(results)))


async def unless(event: asyncio.Event, work: asyncio.Task[T], patience_seconds: float) -> T | None:
    """What ``work`` returns; None when ``event`` is set and ``work`` takes longer than the patience."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await asyncio.wait({work}, timeout=patience_seconds)
        return work.result() if work.done() else None
    finally:
        waiting.cancel()


def plan_tasks_max(last: Sequence[Task], usual: int, most: int = EVALUATION_TASKS_MAX) -> int:
    """How many tasks to ask for next: more than usual, ``most``, after a full answer of evaluations only."""
    full = len(last) >= usual and all(task.kind == "eval" for task in last)
    return max(usual, most) if full else usual


def _ids(tasks: Sequence[Task]) -> frozenset[str]:
    return frozenset(task.task_id for task in tasks)


def split_by_version(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that want the same weights, together; evaluations before training, else in order.

    An engine holds one version at a time, so that a mixed claim costs one load per version.
    """
    batches: dict[tuple[bool, WeightVersion], list[Task]] = {}
    for task in tasks:
        batches.setdefault((task.kind == "train", task.version), []).append(task)
    return [batches[key] for key in sorted(batches, key=lambda key: key[0])]
