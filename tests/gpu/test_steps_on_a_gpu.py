"""The embedded engine's decode steps as CUDA graphs: bit for bit what the same steps give when started one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import shaped_model
import torch

from rollout.engines.embedded.cuda_attention import (
    SideBySide,
    attend_in_products,
    attend_side_by_side,
)
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.engines.embedded.steps.capture import repeat_plainly
from rollout.engines.embedded.steps.slots import STRETCH
from rollout.types import GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, load_weights, save_weights

DEVICE = torch.device("cuda")
SIZES = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
KINDS = {
    "qwen2": lambda: shaped_model.qwen2_half_billion(**SIZES, num_attention_heads=4),
    "qwen3": lambda: shaped_model.qwen3_point_six_billion(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=64
    ),
}


@pytest.fixture(params=sorted(KINDS))
def model(request, tmp_path):
    return Path(shaped_model.write_model(tmp_path / "model", KINDS[request.param](), "cuda"))


def ask(index, samples, new, **more):
    return GenerateRequest(
        prompt_ids=tuple((17 * index + 3 * k) % 4000 + 3 for k in range(11 + 45 * index)),
        sampling=SamplingParams(max_new_tokens=new, **more),
        seeds=tuple(range(100 * index, 100 * index + samples)),
    )


async def started(folder, *, exact, plain):
    capture = repeat_plainly if plain else None
    engine = EmbeddedEngine(
        folder, dtype="BFloat16", exact=exact, batch_groups=4, device=DEVICE, capture=capture
    )
    await load(engine, folder / "model.safetensors")
    return engine


async def load(engine, weights, step=0):
    digest = digest_tensors(load_weights(weights))
    version = WeightVersion(lineage=0, step=step, digest=digest, object=digest)
    assert await engine.load(version, weights) == digest


def answers(folder, rounds, *, exact, plain, more=()):
    """What each of ``rounds`` of requests came to, after the weights in ``more`` once again."""

    async def run():
        engine = await started(folder, exact=exact, plain=plain)
        found = [await engine.generate(requests) for requests in rounds]
        for step, weights in enumerate(more, 1):
            await load(engine, weights, step)
            found += [await engine.generate(requests) for requests in rounds]
        await engine.stop()
        return [[list(group) for group in groups] for groups in found]

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["Exact", "Fast"])
def test_graphs_give_the_bits_of_plain_steps(model, mode, request):
    if mode == "Exact":
        request.getfixturevalue("exact")
    uneven = [ask(i, 4, n) for i, n in enumerate((90, 7, 40, 3))]
    longer = [ask(1, 2, STRETCH + 30), ask(2, 2, STRETCH + 30)]
    ended = [
        ask(i, 4, 40, stop_token_ids=tuple(range(0, 4096, 9)), min_new_tokens=5, temperature=0.8)
        for i in range(4)
    ]
    rounds = [uneven, longer, ended, uneven, [ask(0, 1, 20, temperature=0.0)]]

    graphs = answers(model, rounds, exact=mode == "Exact", plain=False)

    assert graphs == answers(model, rounds, exact=mode == "Exact", plain=True)
    assert graphs[0] == graphs[3]


def test_graphs_go_on_with_new_weights(model, tmp_path):
    other = tmp_path / "other.safetensors"
    tensors = load_weights(model / "model.safetensors")
    save_weights({name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}, other)
    requests = [[ask(i, 4, 20) for i in range(4)]]

    graphs = answers(model, requests, exact=False, plain=False, more=[other])

    assert graphs == answers(model, requests, exact=False, plain=True, more=[other])
    assert graphs[0] != graphs[1]


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("group", [1, 8])
def test_keys_whose_number_the_device_knows_are_all_that_is_read(size, group):
    noise = torch.Generator(DEVICE).manual_seed(0)
    starts, used = [0, 700, 900, 1500], [513, 1, 300, 64]

    def tensor(values):
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    q = torch.randn(4 * group, 6, size, generator=noise, device=DEVICE).bfloat16()
    kv = torch.randn(2, 2048, 2, size, generator=noise, device=DEVICE).bfloat16()
    bounds = SideBySide(
        queries=tensor([group * i for i in range(5)]),
        queries_max=max(2, group),
        keys=tensor([*starts, 0]),
        keys_max=2048,
        used=tensor(used),
    )

    out, lse = attend_side_by_side(q, kv, bounds, 0.125)

    for b, (start, number) in enumerate(zip(starts, used, strict=True)):
        rows = slice(b * group, (b + 1) * group)
        k, v = kv[:, start : start + number].float().transpose(1, 2)[:, None]
        right, right_lse = attend_in_products(
            q[rows].float().transpose(0, 1)[None], k, v, causal=False, bias=None, scale=0.125
        )
        assert (out[rows].float() - right[0].transpose(0, 1)).abs().max() <= 2e-2
        assert (lse[rows] - right_lse[0].t()).abs().max() <= 1e-2


@pytest.mark.parametrize("neighbours", [1, 3, 31])
def test_attention_of_a_row_is_the_same_bits_beside_others(neighbours):
    noise = torch.Generator(DEVICE).manual_seed(0)
    rows, room = neighbours + 1, 1024
    q = torch.randn(32, 14, 64, generator=noise, device=DEVICE).bfloat16()[:rows]
    kv = torch.randn(2, 32, room, 2, 64, generator=noise, device=DEVICE).bfloat16()[:, :rows]

    def attended(first, last):
        bounds = torch.arange(last - first + 1, device=DEVICE, dtype=torch.int32)
        return attend_side_by_side(
            q[first:last],
            kv[:, first:last].contiguous().flatten(1, 2),
            SideBySide(
                queries=bounds,
                queries_max=2,
                keys=bounds * room,
                keys_max=room,
                used=torch.full_like(bounds[1:], 777),
            ),
            0.125,
        )

    together, together_lse = attended(0, rows)
    for row in range(rows):
        alone, alone_lse = attended(row, row + 1)
        assert torch.equal(alone[0], together[row])
        assert torch.equal(alone_lse[0], together_lse[row])
