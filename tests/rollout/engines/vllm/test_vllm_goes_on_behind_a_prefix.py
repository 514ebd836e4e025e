"""A real vLLM server is interrupted in the middle of its samples, and goes on behind what it gave."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from .conftest import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]
TOKENS = 400


async def test_an_interrupted_sample_is_whole_as_far_as_it_goes_and_can_be_continued(
    fast_engine, policies
):
    await fast_engine.load(policies.first.version, policies.first.weights)
    request = ask(12, 3, max_new_tokens=TOKENS)
    going = asyncio.create_task(fast_engine.generate([request]))
    while not any(one.state == "running" for row in fast_engine.progress() for one in row):
        await asyncio.sleep(0.01)
        assert not going.done()
    await asyncio.sleep(0.3)
    fast_engine.interrupt()
    (parts,) = await asyncio.wait_for(going, 60)

    assert fast_engine.progress() == []
    cut = [one for one in parts if one.finish == "interrupted"]
    assert cut, "every sample had ended before it could be interrupted"
    for one in cut:
        assert len(one.token_ids) == len(one.logprobs) < TOKENS
        assert [(span.lineage, span.step) for span in one.spans] in ([], [(0, 0)])

    behind = replace(
        request,
        prompt_ids=(*request.prompt_ids, *cut[0].token_ids),
        seeds=(77,),
        sampling=replace(request.sampling, max_new_tokens=TOKENS - len(cut[0].token_ids)),
    )
    (rest,) = await asyncio.wait_for(fast_engine.generate([behind]), 120)
    assert rest[0].finish == "length"
    assert len(rest[0].token_ids) == TOKENS - len(cut[0].token_ids)
