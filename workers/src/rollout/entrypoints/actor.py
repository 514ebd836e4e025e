"""The actor process: ``python -m rollout.entrypoints.actor --config W --index N``.

SIGTERM: it stops claiming, hands what it has to another actor (Exact: finishes it as far as the grace
period allows), says so, and ends. A failure of the engine ends the process; its tasks have gone back, and
whoever supervises it starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollout.actor.feeding import plan_marks
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.runner import RunnerParts
from rollout.actor.sandboxes import RunSandboxes, episode_room
from rollout.actor.scoring import PipelineScorer
from rollout.actor.task_scoring import TaskScoring, build_task_scoring
from rollout.actor.turns.memory import RunMemory
from rollout.common.stacks import heed_end, run_loop
from rollout.engines.device_turns import shared_turn
from rollout.engines.registry import build_engine
from rollout.engines.shared_device import DeviceUse, OwnDevice, SharedDevice
from rollout.engines.sizes import context_tokens, engine_folder, plan_tasks_max, tasks_at_once
from rollout.entrypoints.config import begin_as, parse_arguments, run_process
from rollout.errors import RolloutError
from rollout.models.experts.families import experts_of
from rollout.models.shapes import read_shape
from rollout.objects.opening import open_store
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import Outcome
from rollout.rendering import build_renderer
from rollout.seams import Engine, SleepingEngine
from rollout.tools.sandbox.chosen import use_sandboxes
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, program_memory
from rollout.weights.mirror import WeightFiles
from rollout_api.worker import WorkerConfig

if TYPE_CHECKING:
    from rollout.actor.reloading.watching import PluginReloads

log = logging.getLogger(__name__)


def main() -> None:
    """Run one actor process to its end."""
    arguments = parse_arguments(__doc__)
    _import_engine()
    config = begin_as(f"actor-{arguments.index}", arguments.config)
    client = CoordinatorClient.open(config, "actor")
    if config.sandboxes is not None:
        broker = RunSandboxes(client.as_worker(f"actor-{arguments.index}"))
        use_sandboxes(PodSandboxes(broker, program_memory(config.sandboxes.memory)))
    task_scoring = _scoring(config, arguments.index)
    try:
        task_scoring.start()
        run_loop(_live(build_parts(config, arguments.index, client, task_scoring)))
    finally:
        task_scoring.close()
        client.close()
        shutil.rmtree(mirror_folder(config, arguments.index), ignore_errors=True)


def _scoring(config: WorkerConfig, index: int) -> TaskScoring | PluginReloads:
    if not config.reloads_plugins:
        return build_task_scoring(config)
    from rollout.actor.reloading.watching import PluginReloads

    return PluginReloads(config, Path(config.layout.run_dir) / "plugins" / f"actor-{index}")


def mirror_folder(config: WorkerConfig, index: int) -> Path:
    """Where an actor keeps the file that deltas are applied to; of use to this process and its engine.

    In a pod it lies in the memory that both containers share (``ROLLOUT_ENGINE_DIR``).
    """
    shared = engine_folder()
    if shared is not None:
        return shared / "mirror"
    return Path(config.layout.run_dir) / "mirror" / f"actor-{index}"


def build_parts(
    config: WorkerConfig,
    index: int,
    client: CoordinatorClient,
    task_scoring: TaskScoring | PluginReloads,
) -> ActorParts:
    """Everything an actor is made of. Raises SpecError."""
    name = f"actor-{index}"
    experts = experts_of(config.resolved)
    fast = config.spec.numerics.mode == "Fast"
    stage = RunnerParts(
        engine=build_engine(config, name),
        renderer=build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template),
        builders=task_scoring.environment,
        seed=config.spec.seed,
        context_max=context_tokens(config, read_shape(Path(config.resolved.model_path)).context),
        prompt_tokens_max=config.resolved.prompt_tokens_max,
        keeps_prefixes=fast,
        room=episode_room(config),
        continuous=fast and config.spec.actors.chosen_engine.capabilities.continuous,
        routes=None if experts is None else experts.empty(),
        single_row=_single_row(config),
        memory=None if config.spec.train is None else RunMemory(client.as_worker(name)),
    )
    return ActorParts(
        worker=name,
        client=client,
        weights=WeightFiles(
            open_store(config, "actor"),
            mirror_folder(config, index),
            in_memory=_sees_its_engine(config),
        ),
        stage=stage,
        scorer=PipelineScorer(pipelines=task_scoring.pipeline, apart=not fast),
        tasks_max=plan_tasks_max(config),
        grace_seconds=config.grace_seconds,
        # What trains takes its tasks in the order of its data, as a step's share of them.
        marks=plan_marks(tasks_at_once(config))
        if stage.continuous and config.spec.train is None
        else None,
        plugins=None if isinstance(task_scoring, TaskScoring) else task_scoring,
        device=_device(config, stage.engine),
    )


def _device(config: WorkerConfig, engine: Engine) -> DeviceUse:
    turn = shared_turn(config, alone=False)
    return OwnDevice() if turn is None else SharedDevice(cast("SleepingEngine", engine), turn)


def _sees_its_engine(config: WorkerConfig) -> bool:
    """Whether the engine's processes see this one's, as on one machine: not in a pod, whose memory is bounded besides."""
    return config.authentication is None and engine_folder() is None


def _single_row(config: WorkerConfig) -> str:
    train = config.spec.train
    return "" if train is None or train.algorithm.traits.branches else train.algorithm.chosen


async def _live(parts: ActorParts) -> None:
    """Work until told to stop, and report how it ended."""
    actor = Actor(parts)

    def leave() -> None:
        parts.client.tell_to_go()
        actor.leave()

    heed_end(leave, asyncio.get_running_loop())
    try:
        await actor.run()
    except RolloutError as error:
        await _report(parts, actor.incarnation, ok=False, message=str(error))
        raise
    await _report(parts, actor.incarnation, ok=True)


async def _report(parts: ActorParts, incarnation: int, *, ok: bool, message: str = "") -> None:
    """Tell the coordinator how this process ends; a coordinator that is gone does not need to know."""
    try:
        client = parts.client.as_worker(parts.worker, incarnation)
        end = Outcome(ok=ok, message=message)
        await asyncio.to_thread(client.call, routes.ACTOR_OUTCOME, end)
    except RolloutError as error:
        log.warning("could not report the end error=%s", error)


def _import_engine() -> None:
    """Load what takes longest before the configuration is there."""
    import rollout.engines.embedded.engine  # noqa: F401 - imported early, while others start


if __name__ == "__main__":
    code = run_process(main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a claim may still wait in a thread; nothing is left to be saved
