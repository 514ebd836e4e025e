"""What the embedded engine gives up half-way is whole, and goes on behind its prefix."""

from __future__ import annotations

import asyncio

import pytest

from rollout.types import GenerateRequest, SamplingParams


def ask(prompt, seeds, tokens, **more):
    return GenerateRequest(
        prompt_ids=tuple(prompt),
        seeds=tuple(seeds),
        sampling=SamplingParams(max_new_tokens=tokens, **more),
    )


@pytest.fixture
async def engine(tiny_model, start_engine):
    return await start_engine(tiny_model("qwen2"), exact=False, batch_groups=8)


async def interrupted_at(engine, request, tokens):
    """Interrupt once some sample has so many tokens."""
    going = asyncio.create_task(engine.generate([request]))
    while not any(one.num_tokens >= tokens for row in engine.progress() for one in row):
        await asyncio.sleep(0)
        assert not going.done(), "ended before it could be interrupted"
    engine.interrupt()
    return (await going)[0]


async def test_what_there_is_comes_back_with_its_logprobs(engine):
    whole = (await engine.generate([ask([3, 5, 7], [11, 12], 400)]))[0]
    parts = await interrupted_at(engine, ask([3, 5, 7], [11, 12], 400), 5)

    for part, all_of_it in zip(parts, whole, strict=True):
        assert part.finish == "interrupted"
        assert 0 < len(part.token_ids) < 400
        assert part.token_ids == all_of_it.token_ids[: len(part.token_ids)]
        assert part.logprobs == pytest.approx(all_of_it.logprobs[: len(part.token_ids)], abs=1e-5)
        assert part.spans[0].end == len(part.token_ids)


async def test_the_engine_can_be_asked_again_at_once(engine):
    await interrupted_at(engine, ask([3, 5, 7], [11, 12], 400), 3)
    after = (await engine.generate([ask([3, 5, 7], [11], 4)]))[0][0]
    assert (len(after.token_ids), after.finish) == (4, "length")
    assert engine.progress() == ()


async def test_a_greedy_sample_that_goes_on_behind_its_prefix_is_the_undisturbed_one(engine):
    greedy = {"temperature": 0.0}
    whole = (await engine.generate([ask([3, 5, 7], [1], 24, **greedy)]))[0][0]
    rest = (await engine.generate([ask((3, 5, 7, *whole.token_ids[:9]), [2], 24 - 9, **greedy)]))[
        0
    ][0]
    assert whole.token_ids[9:] == rest.token_ids
    assert rest.logprobs == pytest.approx(whole.logprobs[9:], abs=1e-4)


async def test_samples_with_different_room_share_a_batch(engine):
    requests = [ask([3, 5], [1, 2], 7), ask([4, 5, 6], [3, 4], 2), ask([4, 5, 9], [5, 6], 5)]
    together = await engine.generate(requests)
    assert [[len(one.token_ids) for one in row] for row in together] == [[7, 7], [2, 2], [5, 5]]
    assert {one.finish for row in together for one in row} == {"length"}
    for request, row in zip(requests, together, strict=True):
        (alone,) = await engine.generate([request])
        assert [one.token_ids for one in alone] == [one.token_ids for one in row]


async def test_what_was_not_begun_comes_back_empty(tiny_model, start_engine):
    engine = await start_engine(tiny_model("qwen2"), exact=False, batch_groups=1)
    going = asyncio.create_task(engine.generate([ask([3], [1], 400), ask([4], [2], 400)]))
    while not any(one.num_tokens > 1 for row in engine.progress() for one in row):
        await asyncio.sleep(0)
    assert [row[0].state for row in engine.progress()] == ["running", "queued"]
    engine.interrupt()
    first, second = await going
    assert (first[0].finish, second[0].finish, second[0].token_ids) == (
        "interrupted",
        "interrupted",
        (),
    )
