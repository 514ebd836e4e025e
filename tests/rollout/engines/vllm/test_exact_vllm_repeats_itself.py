"""In Exact, vLLM on a CPU gives the same bits again: beside others, after a load, after a kill."""

import os
import signal
from dataclasses import replace

import psutil
import pytest

from rollout.errors import EngineError

from .conftest import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]


async def test_every_group_is_bit_equal_alone_in_a_crowd_after_a_load_and_after_a_kill(
    exact_engine, untied_policies
):
    first, other = untied_policies.first, untied_policies.other
    requests = [ask(length, 6, max_new_tokens=48) for length in (3, 40, 200, 300)]

    await exact_engine.load(first.version, first.weights)
    together = await exact_engine.generate(requests)
    alone = [
        [
            (await exact_engine.generate([replace(request, seeds=(seed,))]))[0][0]
            for seed in request.seeds
        ]
        for request in reversed(requests)
    ][::-1]
    assert [list(group) for group in together] == alone

    await exact_engine.load(other.version, other.weights)
    assert await exact_engine.generate(requests) != together
    await exact_engine.load(first.version, first.weights)
    assert await exact_engine.generate(requests) == together

    for process in psutil.Process(exact_engine._server.pid).children(recursive=True):
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        await exact_engine.generate(requests)
    await exact_engine.load(first.version, first.weights)
    assert await exact_engine.generate(requests) == together
