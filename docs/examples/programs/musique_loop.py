"""An agent that answers MuSiQue's questions by searching, as a loop of one's own in one file: `python musique_loop.py QUESTIONS.jsonl [--base NAME]`.

Beside it runs `rollout serve --train [NAME=]MODEL`; its address and key are in TINKER_BASE_URL and TINKER_API_KEY. Each question has a knowledge base of its
own, found with `search` and `read`; the answer's token F1 is the reward, exact match is said beside it. The model that stands for a real one is
`rollout://tiny-agent?tool=search`, for which `--plain` asks questions without the instruction.
"""

import argparse
import asyncio
import json
from pathlib import Path

import rollout
from rollout.client import AdamParams
from rollout.client.episodes import ServicePlayer, episode_reward, policy_data
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.environments.musique_search import MusiqueSearchBuilder, MusiqueSearchParameters
from rollout.rendering.build import build_renderer
from rollout.seeds import derive_seed
from rollout.turns import Budgets
from rollout.types import SamplingParams


async def main() -> None:
    """Train, and say what every step was worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--base", help="a model that is served; the first one")
    parser.add_argument("--plain", action="store_true", help="the question alone, no instruction")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=16, help="questions of a step")
    parser.add_argument("--group", type=int, default=8, help="episodes of each")
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument(
        "--new-tokens", type=int, default=256, help="of a reply; 24 for the tiny one"
    )
    parser.add_argument("--learning-rate", type=float, default=4e-5)
    given = parser.parse_args()
    mapping = FieldMapping(prompt_field="question")
    lines = given.questions.read_text("utf-8").splitlines()
    rows = [map_record(mapping, json.loads(line)) for line in lines]
    rules = {"max_turns": given.max_turns} | ({"instruction": ""} if given.plain else {})
    environments = MusiqueSearchBuilder(parameters=MusiqueSearchParameters(**rules))

    client = await asyncio.to_thread(rollout.connect)
    served = (await client.get_server_capabilities_async()).supported_models
    base = next(one for one in served if given.base in (None, one.model_name))
    model = await client.create_lora_training_client_async(
        base.model_name, given.rank, 0, train_unembed=False
    )
    info = await model.get_info_async()
    renderer = build_renderer(Path(info.model_data.tokenizer_id))
    for step in range(given.steps):
        asked = [rows[(step * given.prompts + i) % len(rows)] for i in range(given.prompts)]
        player = ServicePlayer(
            sampler=await model.save_weights_and_get_sampling_client_async(),
            renderer=renderer,
            sampling=SamplingParams(max_new_tokens=given.new_tokens),
            context_max=base.max_context_length,
            budgets=Budgets(turns=given.max_turns + 1),
        )
        played = await asyncio.gather(
            *(
                player.play(environments.build(row), derive_seed(0, "musique-loop", step, i))
                for i, row in enumerate(row for row in asked for _ in range(given.group))
            )
        )
        data = policy_data(played, [episode_reward(one) for one in played], given.prompts)
        f1, em = (
            sum(one.signals.get(n, 0.0) for one in played) / len(played) for n in ("f1", "em")
        )
        said = f"step {step}: F1 {f1:.3f} EM {em:.3f} turns {sum(one.turn for one in played)}"
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
