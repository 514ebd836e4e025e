"""Decode steps of fixed sizes, taken plainly on the CPU, against the batches that name every size to the host.

A GPU repeats the same steps as CUDA graphs (``tests/gpu``).
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.engines.embedded.sampling import Sampler, uniform_noise
from rollout.engines.embedded.steps.capture import repeat_plainly
from rollout.engines.embedded.steps.slots import (
    READ_EVERY,
    SHAPES_MAX,
    STEPS_MAX,
    STRETCH,
    Slots,
    room_for,
)
from rollout.errors import EngineError
from rollout.types import GenerateRequest, SamplingParams


def ask(prompt, seeds, tokens, **more):
    return GenerateRequest(
        prompt_ids=tuple(prompt),
        seeds=tuple(seeds),
        sampling=SamplingParams(max_new_tokens=tokens, **more),
    )


@pytest.fixture
def both(tiny_model, start_engine):
    """What an engine of plain batches and one of static steps answer."""

    async def answer(requests, kind="qwen2", **options):
        found = []
        for capture in (None, repeat_plainly):
            engine = await start_engine(tiny_model(kind), capture=capture, **options)
            found.append(await engine.generate(requests))
            await engine.stop()
        return found

    return answer


def tokens_of(groups):
    return [[(one.token_ids, one.finish) for one in group] for group in groups]


def assert_same(plain, static, gap=1e-5):
    assert tokens_of(static) == tokens_of(plain)
    for one, other in zip(
        (one for group in plain for one in group),
        (one for group in static for one in group),
        strict=True,
    ):
        assert one.logprobs == pytest.approx(other.logprobs, abs=gap)


@pytest.mark.parametrize(
    ("dtype", "exact"), [("Float32", True), ("Float32", False), ("BFloat16", False)]
)
@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
async def test_groups_of_one_length_are_drawn_alike(both, request_of, kind, dtype, exact):
    requests = [request_of(9, size=4, seed=i, max_new_tokens=21) for i in range(4)]

    plain, static = await both(requests, kind, dtype=dtype, exact=exact, batch_groups=4)

    assert_same(plain, static, 1e-5 if dtype == "Float32" else 2e-2)


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
async def test_in_exact_a_group_is_the_same_whatever_lies_beside_it(
    tiny_model, start_engine, request_of, dtype
):
    requests = [request_of(4 + 7 * i, size=3, seed=i, max_new_tokens=17 - i) for i in range(4)]
    engine = await start_engine(
        tiny_model("qwen3"), dtype=dtype, batch_groups=4, capture=repeat_plainly
    )

    together = await engine.generate(requests)

    for request, group in zip(requests, together, strict=True):
        assert await engine.generate([request]) == [group]


@pytest.mark.parametrize("exact", [True, False])
async def test_ragged_prompts_limits_and_stops_end_alike(both, request_of, exact):
    requests = [
        request_of(
            3 + 11 * i, size=3, seed=i, max_new_tokens=30 - 4 * i, stop_token_ids=(3, 7, 11, 20)
        )
        for i in range(5)
    ]

    plain, static = await both(requests, exact=exact, batch_groups=5)

    assert_same(plain, static)
    assert {one.finish for group in plain for one in group} == {"stop", "length"}


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.6}])
async def test_a_least_number_of_tokens_is_kept(both, request_of, sampling):
    stops = tuple(range(0, 60, 2))
    request = request_of(
        6, size=5, max_new_tokens=14, min_new_tokens=9, stop_token_ids=stops, **sampling
    )

    plain, static = await both([request], exact=False)

    assert_same(plain, static)
    assert all(len(one.token_ids) >= 10 for one in static[0])


async def test_a_batch_that_shrinks_goes_on_with_its_own_tokens(both, request_of):
    requests = [
        request_of(5 + i, size=4, seed=i, max_new_tokens=n)
        for i, n in enumerate((70, 9, 3, 40, 20, 2))
    ]

    plain, static = await both(requests, exact=False, batch_groups=6)

    assert_same(plain, static)


async def test_more_tokens_than_a_stretch_are_drawn_alike(both, request_of):
    request = request_of(4, size=2, max_new_tokens=STRETCH + 40)

    plain, static = await both([request], exact=False)

    assert_same(plain, static, 1e-4)


async def test_the_next_generation_finds_nothing_of_the_last(tiny_model, start_engine, request_of):
    few, many = [request_of(9, size=2, seed=1)], [request_of(30, size=8, seed=i) for i in range(4)]
    engine = await start_engine(
        tiny_model("qwen2"), exact=False, batch_groups=4, capture=repeat_plainly
    )
    alone = await engine.generate(few)

    first = await engine.generate(many)

    assert await engine.generate(few) == alone
    assert await engine.generate(many) == first


async def test_new_weights_are_what_is_drawn_from(
    tiny_model, publish_model, start_engine, tmp_path
):
    requests = [ask([3, 5, 7], [1, 2], 12)]
    engine = await start_engine(tiny_model("qwen2"), exact=False, capture=repeat_plainly)
    await engine.generate(requests)
    version, weights = publish_model(tiny_model("qwen2", seed=5), tmp_path / "later", step=2)
    await engine.load(version, weights)
    after = await engine.generate(requests)
    fresh = await start_engine(tiny_model("qwen2", seed=5), exact=False, capture=repeat_plainly)

    assert tokens_of(after) == tokens_of(await fresh.generate(requests))


async def test_an_interrupt_is_heard_within_a_look(tiny_model, start_engine):
    engine = await start_engine(tiny_model("qwen2"), exact=False, capture=repeat_plainly)
    request = ask([3, 5, 7], [11, 12], 400)
    whole = (await engine.generate([request]))[0]
    going = asyncio.create_task(engine.generate([request]))
    while not any(one.num_tokens >= 5 for row in engine.progress() for one in row):
        await asyncio.sleep(0)
    engine.interrupt()

    for part, all_of_it in zip((await going)[0], whole, strict=True):
        assert part.finish == "interrupted"
        assert 5 <= len(part.token_ids) < 400
        assert part.token_ids == all_of_it.token_ids[: len(part.token_ids)]
        assert part.logprobs == all_of_it.logprobs[: len(part.token_ids)]


def test_the_host_reads_several_tokens_at_a_look(tiny_model, publish_model, tmp_path):
    batch = open_batch(tiny_model, publish_model, tmp_path, new_tokens=20)

    lengths = []
    while sum(lengths) < 20:
        tokens, logprobs = batch.draw(20 - sum(lengths))
        assert tokens.shape == logprobs.shape == (len(tokens), 6)
        lengths.append(len(tokens))

    assert lengths == [READ_EVERY, READ_EVERY, 4]


def test_a_batch_that_another_ended_draws_no_more(tiny_model, publish_model, tmp_path):
    decoder = open_decoder(tiny_model, publish_model, tmp_path)
    size = BatchSize(group_size=1, new_tokens_max=4)
    first, _ = decoder.open([(3, 4)], size), decoder.open([(5, 6)], size)
    first.draw_with(Sampler(SamplingParams(max_new_tokens=4), 61), uniform_noise([1], 4)[:, :, 0])

    with pytest.raises(EngineError, match="ended by another"):
        first.draw(4)


def test_captured_steps_are_taken_again_and_few_are_kept():
    class Counting:
        def __init__(self):
            self.captured = self.plain = self.replayed = 0

        def step(self):
            self.plain += 1

        def capture(self, step, beside):
            del step, beside
            self.captured += 1
            return self

        def replay(self):
            self.replayed += 1

    counts, slots = Counting(), empty_slots()
    for kind in (1, 1, 1, 2, 1):
        slots.run(kind, counts.step, counts.capture)
    assert (counts.plain, counts.captured, counts.replayed) == (2, 2, 3)

    for kind in range(10, 10 + STEPS_MAX):  # all others go
        slots.run(kind, counts.step, counts.capture)
    slots.run(1, counts.step, counts.capture)
    assert counts.plain == 2 + STEPS_MAX + 1


def test_few_shapes_are_remembered(tiny_model, publish_model, tmp_path):
    decoder = open_decoder(tiny_model, publish_model, tmp_path)
    for groups in range(SHAPES_MAX + 6, 0, -1):
        decoder.open([(3, 4)] * groups, BatchSize(group_size=8, new_tokens_max=4))
    assert len(decoder._room._slots) == SHAPES_MAX


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 255, 256, 257, 4000])
def test_there_is_room_for_the_tokens_asked_for(tokens):
    assert tokens <= room_for(tokens) <= max(16, 2 * tokens)


def empty_slots():
    class Model:
        device = torch.device("cpu")

    from rollout.engines.embedded.steps.slots import Shape

    return Slots(Model(), Shape(rows=8, room=16), [], 16)


def open_decoder(tiny_model, publish_model, folder):
    model = tiny_model("qwen2")
    publish_model(model, folder)
    decoder = CompactDecoder(read_config(folder), torch.float32, capture=repeat_plainly)
    decoder.load(dict(model.state_dict()))
    return decoder


def open_batch(tiny_model, publish_model, folder, *, new_tokens):
    decoder = open_decoder(tiny_model, publish_model, folder)
    batch = decoder.open([(3, 4), (5, 6)], BatchSize(group_size=3, new_tokens_max=new_tokens))
    sampler = Sampler(SamplingParams(max_new_tokens=new_tokens), 61)
    batch.draw_with(sampler, uniform_noise(range(6), new_tokens)[:, :, 0])
    return batch
