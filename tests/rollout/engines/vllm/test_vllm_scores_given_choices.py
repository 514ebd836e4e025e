"""A real vLLM server scores given replies as a plain forward of the same weights does, alone, in a crowd, and beside samples."""

from dataclasses import replace

import pytest

from rollout.weights.verify import plain_logprobs

from .conftest import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]

CHOICES = ((7, 3, 11), (5,), (40, 40), (7, 3, 12, 9))
GAP_MAX_NATS = 1e-3


def scored(length: int):
    return replace(ask(length, 1), choices=CHOICES)


def plain_sums(policy, request):
    found = plain_logprobs(policy.model, request.prompt_ids, CHOICES, 1.0)
    return [float(sum(one)) for one in found]


async def load(engine, policy):
    if engine.version != policy.version:
        assert await engine.load(policy.version, policy.weights) == policy.version.digest


async def test_every_choice_has_the_sum_of_a_plain_forward(fast_engine, policies):
    requests = [scored(length) for length in (1, 5, 130, 300)]
    for policy in (policies.first, policies.other):
        await load(fast_engine, policy)
        sampled = ask(300)
        [before] = await fast_engine.generate([sampled])  # its prompt is in the cache from here on

        together = await fast_engine.generate([*requests, sampled])
        alone = [(await fast_engine.generate([one]))[0] for one in requests]

        for request, [found], [again] in zip(requests, together, alone, strict=False):
            sums = plain_sums(policy, request)
            assert found.choice_logprobs == pytest.approx(sums, abs=GAP_MAX_NATS)
            assert again.choice_logprobs == pytest.approx(sums, abs=GAP_MAX_NATS)
            assert found.token_ids == CHOICES[max(range(4), key=sums.__getitem__)]
            assert (found.spans[0].lineage, found.spans[0].step) == (0, policy.version.step)
        assert [one.token_ids for one in together[-1]] == [one.token_ids for one in before]


@pytest.mark.slow
async def test_in_exact_the_sums_are_bit_equal_alone_and_in_a_crowd(exact_engine, untied_policies):
    await load(exact_engine, untied_policies.first)
    requests = [scored(length) for length in (4, 40, 130)]

    together = await exact_engine.generate(requests)
    alone = [(await exact_engine.generate([one]))[0] for one in requests]

    assert list(together) == alone
    for request, [found] in zip(requests, together, strict=True):
        sums = plain_sums(untied_policies.first, request)
        assert found.choice_logprobs == pytest.approx(sums, abs=GAP_MAX_NATS)
