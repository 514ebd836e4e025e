"""A sample depends on weights, prompt, sampling and its own seed; in exact mode bit for bit.

Two threads: attention's second thread works in memory that begins elsewhere, which its products could tell.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from rollout.engines.batching import candidate_widths
from rollout.engines.embedded.batch import CompactBatch
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.engines.embedded.generate import plan_batches
from rollout.engines.embedded.invariance import SlotProbe
from rollout.engines.embedded.sampling import uniform_noise

EXACT = [{}, {"batch_groups": 4}, {"batch_groups": 4, "num_threads": 2}]


@pytest.mark.parametrize("options", EXACT)
async def test_exact_results_are_bitwise_those_of_a_rerun_in_other_company(
    options, tiny_model, start_engine, request_of
):
    model = tiny_model("qwen2")
    stops = {"stop_token_ids": (3, 4), "max_new_tokens": 9}
    requests = [request_of(n, seed=n, **stops) for n in (5, 9, 12, 2, 7)]
    engine = await start_engine(model, **options)
    together = await engine.generate(requests)

    again = await start_engine(model, **options)
    backwards = list(await again.generate(requests[::-1]))[::-1]
    alone = [(await again.generate([request]))[0] for request in requests]

    assert together == backwards
    assert together == alone


@pytest.mark.parametrize("size", [1, 3, 8])
async def test_whatever_lies_beside_a_group_and_where_it_changes_no_bit(
    size, tiny_model, start_engine, request_of
):
    """Lengths on both sides of every padding, groups that end early, company drawn anew each time."""
    model = tiny_model("llama")
    lengths = (2, 13, 14, 15, 31, 46, 47, 80)
    requests = [
        request_of(n, size=size, seed=n, max_new_tokens=10 + n // 2, stop_token_ids=(3, 4, 5))
        for n in lengths
    ]
    engine = await start_engine(model, batch_groups=6, num_threads=2)
    alone = [(await engine.generate([request]))[0] for request in requests]
    draw = random.Random(size)

    for _ in range(8):
        some = draw.sample(range(len(lengths)), draw.randint(2, len(lengths)))
        found = await engine.generate([requests[index] for index in some])
        assert list(found) == [alone[index] for index in some]


async def test_groups_of_a_claim_are_decoded_together_in_exact(
    tiny_model, start_engine, request_of, monkeypatch
):
    opened = []
    monkeypatch.setattr(
        CompactDecoder,
        "open",
        lambda decoder, prompts, size, real=CompactDecoder.open: (
            opened.append((len(prompts), size.widths[-1:])) or real(decoder, prompts, size)
        ),
    )
    engine = await start_engine(tiny_model("qwen2"), batch_groups=4, num_threads=2)
    requests = [request_of(n, seed=n, max_new_tokens=60) for n in (5, 60, 12, 33)]
    await engine.generate(requests[:1])
    opened.clear()

    await engine.generate(requests)

    decoded = [prompts for prompts, width in opened if prompts == len(requests) and width == (16,)]
    assert decoded


@pytest.fixture
def probe(tiny_model, publish_model, tmp_path):
    model = tiny_model("qwen2")
    publish_model(model, tmp_path / "probed")
    one_layer = replace(read_config(tmp_path / "probed"), num_layers=1)
    found = SlotProbe(partial(CompactDecoder, one_layer, torch.float32), 16)
    found.expect(model.state_dict())
    return found


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("group_size", [1, 2, 4, 6, 8])
def test_places_and_widths_agree_at_every_length(probe, group_size, num_threads):
    torch.set_num_threads(num_threads)

    assert probe.widths(group_size, 40, 9) == candidate_widths(group_size, 16)
    assert probe.widths(group_size, 40, 130) == candidate_widths(group_size, 16)


def test_the_probe_sees_a_place_that_computes_differently(probe, monkeypatch):
    hidden = CompactBatch.hidden

    def last_sample_is_off_by_one_bit(batch, tokens):
        x_EN = hidden(batch, tokens)
        x_EN[7, -1] = torch.nextafter(x_EN[7, -1], torch.tensor(9.0))
        return x_EN

    monkeypatch.setattr(CompactBatch, "hidden", last_sample_is_off_by_one_bit)

    assert probe.widths(4, 12, 5) == ()


def test_the_probe_leaves_out_a_width_that_computes_differently(probe, monkeypatch):
    hidden = CompactBatch.hidden

    def narrow_batches_are_off_by_one_bit(batch, tokens):
        x_EN = hidden(batch, tokens)
        if x_EN.shape[1] == 16:
            x_EN[7] = torch.nextafter(x_EN[7], torch.tensor(9.0))
        return x_EN

    monkeypatch.setattr(CompactBatch, "hidden", narrow_batches_are_off_by_one_bit)

    assert probe.widths(4, 12, 5) == candidate_widths(4, 16)[1:]


def test_a_shape_too_long_to_probe_is_not_shared(probe):
    assert probe.widths(4, 5000, 8) == ()


def test_requests_of_other_shapes_are_apart(request_of):
    requests = [request_of(n, seed=n) for n in (9, 5, 7)]

    plans = plan_batches(requests, 4, [(16,), (16, 32), (16,)])

    assert sorted(plan.indices for plan in plans) == [(1,), (2, 0)]


async def test_where_places_disagree_every_group_runs_alone(
    tiny_model, start_engine, request_of, monkeypatch
):
    model = tiny_model("qwen2")
    requests = [request_of(n, seed=n) for n in (5, 9, 6)]
    alone = await (await start_engine(model)).generate(requests)
    monkeypatch.setattr(SlotProbe, "widths", lambda *_: ())

    shared = await (await start_engine(model, batch_groups=4)).generate(requests)

    assert shared == alone


async def test_fast_batches_change_no_token_of_a_sample(tiny_model, start_engine, request_of):
    model = tiny_model("llama")
    requests = [request_of(n, seed=n) for n in (5, 9, 9, 2)]
    alone = await (await start_engine(model)).generate(requests)

    batched = await (await start_engine(model, exact=False, batch_groups=4)).generate(requests)

    assert [[c.token_ids for c in g] for g in alone] == [[c.token_ids for c in g] for g in batched]


async def test_a_sample_keeps_its_tokens_when_its_group_is_another(
    tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"), exact=False)
    request = request_of(5, size=6)
    [whole] = await engine.generate([request])

    [part] = await engine.generate([replace(request, seeds=request.seeds[3:5])])

    assert [c.token_ids for c in part] == [c.token_ids for c in whole[3:5]]
    assert len({c.token_ids for c in whole}) > 1


def test_noise_is_a_function_of_seed_and_position_alone():
    both = uniform_noise([7, 2**63 - 1], 5)

    assert torch.equal(uniform_noise([2**63 - 1], 3)[:, 0], both[:3, 1])
    assert both.unique().numel() == 10
    assert 0 <= float(both.min()) < float(both.max()) < 1


def test_noise_is_uniform():
    noise = uniform_noise(range(200), 200).flatten()

    assert abs(float(noise.mean()) - 0.5) < 0.005
    assert abs(float(noise.var()) - 1 / 12) < 0.002
    lag = torch.corrcoef(torch.stack([noise[:-1], noise[1:]]))[0, 1]
    assert abs(float(lag)) < 0.02
