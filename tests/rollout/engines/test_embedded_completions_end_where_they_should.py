"""End tokens, forced minimum lengths, limits, and samples that end before their neighbours."""

from __future__ import annotations

import pytest

from rollout.errors import EngineError

STOPS = tuple(range(0, 61, 4))


@pytest.mark.parametrize("options", [{}, {"exact": False, "batch_groups": 8}, {"batch_groups": 4}])
async def test_a_completion_ends_with_its_first_end_token_or_at_the_limit(
    options, tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"), **options)
    requests = [request_of(n, seed=n, stop_token_ids=STOPS, max_new_tokens=10) for n in range(1, 7)]

    completions = [c for group in await engine.generate(requests) for c in group]

    for c in completions:
        assert len(c.token_ids) == len(c.logprobs) <= 10
        assert not set(c.token_ids[:-1]) & set(STOPS)
        assert c.finish == ("stop" if c.token_ids[-1] in STOPS else "length")
        assert c.finish == "stop" or len(c.token_ids) == 10
    assert len({len(c.token_ids) for c in completions}) > 2


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
async def test_samples_that_go_on_are_not_disturbed_by_those_that_ended(
    kind, tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model(kind), exact=False, batch_groups=8)
    requests = [request_of(n, seed=n, max_new_tokens=20) for n in (4, 5, 5, 8)]
    free = await engine.generate(requests)
    stopping = [
        request_of(n, seed=n, max_new_tokens=20, stop_token_ids=STOPS) for n in (4, 5, 5, 8)
    ]

    ended = await engine.generate(stopping)

    for group, free_group in zip(ended, free, strict=True):
        for c, whole in zip(group, free_group, strict=True):
            assert c.token_ids == whole.token_ids[: len(c.token_ids)]
            assert c.logprobs == pytest.approx(whole.logprobs[: len(c.token_ids)], abs=5e-6)


async def test_no_end_token_before_the_minimum(tiny_model, start_engine, request_of):
    engine = await start_engine(tiny_model("qwen2"))
    request = request_of(5, stop_token_ids=STOPS, min_new_tokens=6, max_new_tokens=12)

    [group] = await engine.generate([request])

    assert all(len(c.token_ids) > 6 for c in group)
    assert all(not set(c.token_ids[:6]) & set(STOPS) for c in group)


async def test_forced_length_is_exact(tiny_model, start_engine, request_of):
    engine = await start_engine(tiny_model("qwen2"))
    request = request_of(5, stop_token_ids=STOPS, min_new_tokens=12, max_new_tokens=12)

    [group] = await engine.generate([request])

    assert [len(c.token_ids) for c in group] == [12] * 4


async def test_a_completion_names_the_version_that_sampled_it(tiny_model, start_engine, request_of):
    engine = await start_engine(tiny_model("qwen2"))

    [[completion]] = await engine.generate([request_of(3, size=1)])

    [span] = completion.spans
    assert (span.start, span.end, span.lineage, span.step) == (0, 12, 0, 1)


async def test_what_does_not_fit_the_model_is_refused(tiny_model, start_engine, request_of):
    engine = await start_engine(tiny_model("qwen2"))

    with pytest.raises(EngineError, match="positions"):
        await engine.generate([request_of(501, max_new_tokens=12)])
    with pytest.raises(EngineError, match="expected a prompt"):
        await engine.generate([request_of(0)])
