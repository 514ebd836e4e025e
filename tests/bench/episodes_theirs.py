"""verifiers' side of the duel of episodes: its ``MultiTurnEnv`` and its client, as its trainers use them.

``python episodes_theirs.py PORT PACKAGES``. Version 0.1.14 is the last with a loop that runs in the process that
asks; since 0.2 each episode is a program of its own, which costs a second or two of a core before its first turn.
"""

from __future__ import annotations

import asyncio
import logging
import sys

sys.path.insert(1, sys.argv[2])

import verifiers as vf
from datasets import Dataset
from episodes_job import EPISODES, GROUP, QUESTION, REPLY_TOKENS, TURNS, observation
from turns import Turns
from verifiers.types import ClientConfig

logging.disable(logging.WARNING)


class House(vf.MultiTurnEnv):
    """Eight turns, the same every time."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": observation(len(state["trajectory"]))}]


async def reward(state) -> float:
    """Whether it was played to its end."""
    return float(len(state["trajectory"]) == TURNS)


def quiet(*args: object) -> None:
    """No progress is drawn."""


async def main(port: str, turns: Turns) -> None:
    prompt = [{"role": "user", "content": QUESTION}]
    rows = Dataset.from_list([{"prompt": prompt, "answer": ""}])
    env = House(dataset=rows, rubric=vf.Rubric(funcs=[reward]), max_turns=TURNS)
    inputs = [
        {"prompt": prompt, "answer": "", "example_id": place // GROUP} for place in range(EPISODES)
    ]
    config = ClientConfig(api_base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    sampling = {
        "max_tokens": REPLY_TOKENS,
        "temperature": 1.0,
        "logprobs": True,
        "extra_body": {"return_token_ids": True},
    }
    turns.stop(weights="", first_tokens=[])
    while True:
        turns.start()
        made = await env.generate(
            inputs,
            client=config,
            model="policy",
            sampling_args=sampling,
            state_columns=["trajectory"],
            on_start=quiet,
            on_progress=quiet,
            on_log=quiet,
        )
        check(made["outputs"])
        turns.stop(episodes=EPISODES)


def check(outputs) -> None:
    """Every episode has all its turns, with the tokens that were sampled."""
    assert len(outputs) == EPISODES
    for one in outputs:
        assert one["reward"] == 1.0 and len(one["trajectory"]) == TURNS, one
        tokens = one["trajectory"][-1]["tokens"]
        assert len(tokens["completion_ids"]) == len(tokens["completion_logprobs"]) == REPLY_TOKENS


if __name__ == "__main__":
    told = Turns()
    asyncio.run(main(sys.argv[1], told))
