"""GRPO on GSM8K as a loop of one's own, in one file: `python gsm8k_loop.py FOLDER [--base NAME] [--steps N]`.

Beside it runs `rollout serve --train [NAME=]MODEL`; its address and key are in TINKER_BASE_URL and TINKER_API_KEY. FOLDER has GSM8K's train.jsonl
(manifests/samples/data/gsm8k is a copy). A step: questions, a group of answers to each, the right ones rewarded, advantages over the group's mean, one update.
"""

import argparse
import asyncio
import json
from pathlib import Path

import rollout
from rollout.client import AdamParams
from rollout.client.episodes import ServicePlayer, policy_data
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.evaluations.scoring.gsm8k import STYLES, score_reply
from rollout.rendering.build import build_renderer
from rollout.seeds import derive_seed
from rollout.types import SamplingParams

STYLE = STYLES["cot-zeroshot"]


def right(episode, row):
    """Whether the last number of the reply is the answer."""
    return score_reply(STYLE, episode.reply, row["answer"], episode.ending == "length")["flexible"]


async def main() -> None:
    """Train, and say what every step was worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", help="a model that is served; the first one")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=8, help="questions of a step")
    parser.add_argument("--group", type=int, default=8, help="answers to each")
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=4e-5)
    given = parser.parse_args()
    mapping = FieldMapping(template=STYLE.question, prompt_field="question")
    lines = (given.folder / "train.jsonl").read_text("utf-8").splitlines()
    rows = [map_record(mapping, json.loads(line)) for line in lines]

    client = await asyncio.to_thread(rollout.connect)
    served = (await client.get_server_capabilities_async()).supported_models
    base = next(one for one in served if given.base in (None, one.model_name))
    model = await client.create_lora_training_client_async(
        base.model_name, given.rank, 0, train_unembed=False
    )
    info = await model.get_info_async()
    renderer = build_renderer(Path(info.model_data.tokenizer_id))
    environments = SingleTurnBuilder()
    for step in range(given.steps):
        asked = [rows[(step * given.prompts + i) % len(rows)] for i in range(given.prompts)]
        player = ServicePlayer(
            sampler=await model.save_weights_and_get_sampling_client_async(),
            renderer=renderer,
            sampling=SamplingParams(max_new_tokens=given.new_tokens),
            context_max=base.max_context_length,
        )
        group = [row for row in asked for _ in range(given.group)]
        played = await asyncio.gather(
            *(
                player.play(environments.build(row), derive_seed(0, "gsm8k-loop", step, i))
                for i, row in enumerate(group)
            )
        )
        rewards = [right(episode, row) for episode, row in zip(played, group, strict=True)]
        data = policy_data(played, rewards, given.prompts)
        said = f"step {step}: reward {sum(rewards) / len(rewards):.3f}"
        if data:
            await model.forward_backward_async(data, "importance_sampling")
            stepped = await model.optim_step(AdamParams(learning_rate=given.learning_rate))
            print(f"{said} gradient {stepped.metrics['gradient_norm:max']:.4f} {stepped.chain}")
        else:
            print(f"{said}, all groups alike: nothing to learn from")
    saved = await model.save_weights_for_sampler("final")
    print(f"saved: {saved.path}")
    await asyncio.to_thread(client.close)


if __name__ == "__main__":
    asyncio.run(main())
