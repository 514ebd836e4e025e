"""A sample depends on weights, prompt, sampling and its own seed; in exact mode bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout.engines.embedded.batch import BatchSize, CompactBatch, CompactDecoder
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.generate import plan_slots
from rollout.engines.embedded.invariance import SlotProbe
from rollout.engines.embedded.sampling import uniform_noise

EXACT = [{}, {"batch_groups": 4}]


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


@pytest.fixture
def probe(tiny_model, publish_model, tmp_path):
    model = tiny_model("qwen2")
    publish_model(model, tmp_path / "probed")
    found = SlotProbe(lambda: CompactDecoder(read_config(tmp_path / "probed"), torch.float32))
    found.expect(model.state_dict())
    return found


def test_slots_agree_where_a_batch_is_whole_vectors(probe, request_of):
    [plan] = plan_slots([request_of(n, seed=n) for n in (5, 7, 8)], 4)

    assert plan.num_slots == 4
    assert plan.size.prompt_length == 8
    assert probe.slots_agree(4, plan.size)


def test_the_probe_sees_a_slot_that_computes_differently(probe, request_of, monkeypatch):
    [plan] = plan_slots([request_of(5)], 4)
    step = CompactBatch.step

    def last_sample_is_off_by_one_bit(batch, tokens):
        logits = step(batch, tokens)
        logits[-1, 7] = torch.nextafter(logits[-1, 7], torch.tensor(9.0))
        return logits

    monkeypatch.setattr(CompactBatch, "step", last_sample_is_off_by_one_bit)

    assert not probe.slots_agree(4, plan.size)


def test_a_shape_too_long_to_probe_is_not_shared(probe):
    assert not probe.slots_agree(4, BatchSize(group_size=4, new_tokens_max=300, prompt_length=8))


async def test_where_slots_disagree_every_group_runs_alone(
    tiny_model, start_engine, request_of, monkeypatch
):
    model = tiny_model("qwen2")
    requests = [request_of(n, seed=n) for n in (5, 9, 6)]
    alone = await (await start_engine(model)).generate(requests)
    monkeypatch.setattr(SlotProbe, "slots_agree", lambda *_: False)

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
