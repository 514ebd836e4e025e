"""Processes of a simulated inference run: the real actor loop, player and feeding over an engine of hashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from virtual_time import Process
from workers import HashEngine, draw_of
from world import Client, World

from rollout.actor.feeding import plan_marks
from rollout.actor.loop import ActorParts
from rollout.actor.runner import RunnerParts
from rollout.actor.scoring import PipelineScorer
from rollout.data.rows.mapping import row_messages
from rollout.entrypoints.actor import _live
from rollout.environments.single_turn import SingleTurn, SingleTurnBuilder
from rollout.errors import InfrastructureError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.rendering.tool_calls import parse_reply
from rollout.rewards.pipeline import RewardPipeline
from rollout.seams import SampleProgress
from rollout.types import Completion, GenerateRequest, WeightVersion

END = 0
GRACE_SECONDS = 4.0
"""Shorter than most replies take, so that one who leaves interrupts its engine."""
AT_ONCE = 4
"""Samples that fill one engine."""
SEED = 11
LOST = "nobody can draw this"
"""A row that says so has no answer, whoever tries."""
WEIGHTS = b"weights"


class LetterRenderer:
    """Each letter is its code; a reply ends with END."""

    stop_token_ids = (END,)

    def render_prompt(self, messages: Sequence[Any], tools: Any = ()) -> tuple[int, ...]:
        return tuple(ord(letter) for message in messages for letter in f"{message.text}\n")

    def render_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def render_next(self, reply: Any, added: Any) -> tuple[int, ...]:
        raise AssertionError("a row of a batch has one turn")

    def parse_reply(self, text: str, said: Any, tools: Any, turn: int) -> Any:
        return parse_reply(text, "hermes", tools, turn)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != END)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        return True


class BatchEngine(HashEngine):
    """What it draws depends on prompt, seed and weights alone; drawing takes time, and an interruption ends it."""

    def __init__(self, world: World, process: Process, index: int) -> None:
        super().__init__(world, process, index)
        self._playing: dict[int, asyncio.Event] = {}

    def interrupt(self) -> None:
        for told in self._playing.values():
            told.set()

    def progress(self) -> list[list[SampleProgress]]:
        return []

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[list[Completion]]:
        await self._process.gate()
        assert self.version is not None
        told, version = asyncio.Event(), self.version
        self._playing[id(told)] = told
        try:
            slow = self._world.scenario.slowness
            await asyncio.wait_for(told.wait(), self._world.draw.uniform(0.1, 2.0) * slow)
            self._world.count("interruptions")
            return [[NOTHING for _ in request.seeds] for request in requests]
        except TimeoutError:
            return [[say(version, request, seed) for seed in request.seeds] for request in requests]
        finally:
            del self._playing[id(told)]
            await self._process.gate()


NOTHING = Completion(token_ids=(), logprobs=(), finish="interrupted")


def say(version: WeightVersion, request: GenerateRequest, seed: int) -> Completion:
    """The reply of one sample: letters, its own number of them."""
    noise = (version.digest, request.prompt_ids, seed)
    number = draw_of(noise) % 12
    ids = (*(97 + draw_of(noise, place) % 26 for place in range(number)), END)
    ids = ids[: request.sampling.max_new_tokens]
    return Completion(
        token_ids=ids,
        logprobs=tuple(-0.25 * (1 + token % 3) for token in ids),
        finish="stop" if ids[-1] == END else "length",
    )


class _LostEnv(SingleTurn):
    async def start(self) -> Any:
        raise InfrastructureError("the engine gave up on it")


class _LostBuilder(SingleTurnBuilder):
    def build(self, row: Any) -> SingleTurn:
        return _LostEnv(messages=row_messages(row))


def build_environment(task: m.Task) -> Any:
    return _LostBuilder() if LOST in task.row["prompt"] else SingleTurnBuilder()


async def act(world: World, process: Process, index: int) -> None:
    """The actor's program from its entry point on; only the engine and the renderer are ours."""
    client: Any = Client(world, process)
    fed = world.scenario.tasks_max > 1
    stage = RunnerParts(
        engine=BatchEngine(world, process, index),
        renderer=LetterRenderer(),
        builders=build_environment,
        seed=SEED,
        keeps_prefixes=False,
        continuous=fed,
    )
    pipeline = RewardPipeline(())
    await _live(
        ActorParts(
            worker=process.name,
            client=client,
            weights=world.store,
            stage=stage,
            scorer=PipelineScorer(pipelines=lambda task: pipeline, apart=True),
            tasks_max=world.scenario.tasks_max,
            grace_seconds=GRACE_SECONDS,
            marks=plan_marks(AT_ONCE // 2) if fed else None,
        )
    )


async def publish(world: World, process: Process) -> None:
    """As ``entrypoints.model`` does it."""
    client = Client(world, process).as_worker("learner")
    started = await client.call(routes.START, m.LearnerStart())
    client = client.as_worker("learner", started.incarnation)
    await process.gate()
    digest = world.store.put(WEIGHTS)
    version = WeightVersion(lineage=0, step=0, digest=digest, object=digest)
    if started.initial is None:
        initial = m.PublishInitial(version=version, chain="blake3:" + "1" * 64)
        await client.call(routes.PUBLISH_INITIAL, initial)
    await client.call(routes.LEARNER_OUTCOME, m.Outcome(ok=True, message="the model is published"))
