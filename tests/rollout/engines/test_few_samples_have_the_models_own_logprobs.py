"""Products with few samples take another kernel: a sample's numbers are the model's own there, too."""

from __future__ import annotations

import pytest
import torch

from rollout.engines.embedded.model import FEW_SAMPLES


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("exact", [True, False])
async def test_logprobs_are_the_models_own_while_samples_become_few(
    kind, exact, tiny_model, start_engine, request_of
):
    model = tiny_model(kind)
    size = FEW_SAMPLES + 2
    asked = request_of(5, size=size, seed=3, max_new_tokens=60, stop_token_ids=(3, 4, 5))
    [group] = await (await start_engine(model, exact=exact)).generate([asked])

    lengths = sorted(len(one.token_ids) for one in group)
    assert lengths[1] < lengths[2] < lengths[-1]  # some went on where the others had ended
    for one in group:
        ids = torch.tensor([asked.prompt_ids + one.token_ids])
        with torch.no_grad():
            logits_TV = model(ids).logits[0, len(asked.prompt_ids) - 1 : -1].double()
        chosen_T1 = torch.tensor(one.token_ids)[:, None]
        plain_T = torch.log_softmax(logits_TV, -1).gather(1, chosen_T1)[:, 0]
        torch.testing.assert_close(torch.tensor(one.logprobs).double(), plain_T, rtol=0, atol=1e-5)
