"""Our side of the duel of episodes: an actor's loop with its vLLM engine and renderer, as a run has them, up to trajectories.

``python episodes_ours.py FOLDER``: the simulated server's socket is in the folder.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from episodes_job import EPISODES, GROUP, QUESTION, REPLY_TOKENS, TURNS, observation
from turns import Turns

from rollout.actor.episodes import Score
from rollout.actor.runner import PlayedTask, RunnerParts, play
from rollout.actor.submitting import finish_trajectory
from rollout.engines.vllm.attached import AttachedProcess
from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.engine import VllmEngine
from rollout.engines.vllm.server import VllmServer
from rollout.environments.plugin import wrap_class
from rollout.models.resolve import resolve_model
from rollout.protocol.messages import Task
from rollout.rendering import build_renderer
from rollout.turns import Action, Ending, State
from rollout.types import Message, SamplingParams, WeightVersion

VERSION = WeightVersion(lineage=0, step=0, digest="", object="")


class House:
    """Eight turns, the same every time."""

    def __init__(self, row: object) -> None:
        self._turn = 0

    async def start(self) -> State:
        return State(messages=(Message(role="user", content=QUESTION),))

    async def step(self, action: Action) -> State | Ending:
        self._turn += 1
        if self._turn == TURNS:
            return Ending(kind="done", turn_reward=1.0)
        said = Message(role="user", content=observation(self._turn))
        return State(messages=(said,), turn_reward=0.0)

    async def close(self) -> None: ...


def tasks() -> list[Task]:
    """The groups of one turn of the duel."""
    return [
        Task(
            task_id=f"t{ordinal}",
            kind="train",
            ordinal=ordinal,
            row={"messages": [{"role": "user", "content": QUESTION}], "answer": ""},
            num_samples=GROUP,
            attempt=1,
            epoch=1,
            lease_seconds=600.0,
            version=VERSION,
            sampling=SamplingParams(max_new_tokens=REPLY_TOKENS),
        )
        for ordinal in range(EPISODES // GROUP)
    ]


def build_parts(folder: Path) -> RunnerParts:
    """The engine is attached to the simulated server, whose one version it believes to be loaded."""
    model = resolve_model("rollout://tiny-qwen2").path
    settings = VllmSettings(
        model_dir=model,
        log_path=folder / "log",
        dtype="float32",
        max_model_length=1 << 16,
        vocab_size=1 << 16,
        exact=False,
        max_num_seqs=EPISODES,
        engine_dir=folder,
    )
    engine = VllmEngine(settings)
    engine._server = VllmServer(settings, folder, AttachedProcess(folder))
    engine._version = VERSION
    house = wrap_class(House, {}, "house")
    return RunnerParts(
        engine=engine,
        renderer=build_renderer(model, "chatml"),
        builders=lambda task: house,
        seed=7,
        keeps_prefixes=True,
        continuous=True,
    )


def finish(played: PlayedTask) -> None:
    """Every episode becomes a trajectory with all its turns and the tokens that were sampled."""
    assert played.failure is None and len(played.episodes) == GROUP, played.failure
    for one in played.episodes:
        total = sum(reward or 0.0 for reward in one.turn_rewards)
        score = Score(rewards={"environment": total}, reward=total)
        made = finish_trajectory(one, played.task.row, score, {})
        assert (one.turn, made.reward) == (TURNS, 1.0)
        assert sum(made.loss_mask) == TURNS * REPLY_TOKENS


async def main(folder: Path, turns: Turns) -> None:
    """Turn by turn until the parent ends this."""
    parts = build_parts(folder)
    turns.stop(weights="", first_tokens=[])
    while True:
        turns.start()
        for played in await play(tasks(), parts):
            finish(played)
        turns.stop(episodes=EPISODES)


if __name__ == "__main__":
    told = Turns()
    asyncio.run(main(Path(sys.argv[1]), told))
