"""A real vLLM server samples from exactly the version it was given, or says that it cannot.

The tests share one server and run in order: the last ones kill it.
"""

import asyncio
import os
import signal
import socket
import time
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from rollout.common.stacks import END, ask_for_stacks
from rollout.engines.vllm.engine import VllmEngine
from rollout.engines.vllm.wire import build_update_body
from rollout.errors import EngineError
from rollout.types import Completion, GenerateRequest, VersionSpan
from rollout.weights.digest import digest_tensors, load_weights, save_weights
from rollout.weights.verify import FLOAT32_GAP_MAX, max_logprob_gap, plain_logprobs

from .conftest import Policy, ask, publish

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]

CACHED_PROMPT = 300
"""Tokens: more than two of vLLM's cache blocks of 128 on a CPU."""
PASS_TOKENS = 2048
"""What a server computes at a time where nobody says otherwise."""


def gap(policy: Policy, request: GenerateRequest, group: tuple[Completion, ...]) -> float:
    """Between what the actor recorded and what the learner's own model says of the same tokens."""
    scored = plain_logprobs(
        policy.model,
        request.prompt_ids,
        [completion.token_ids for completion in group],
        request.sampling.temperature,
    )
    return max_logprob_gap([completion.logprobs for completion in group], scored)


async def load(engine: VllmEngine, policy: Policy) -> None:
    if engine.version != policy.version:
        assert await engine.load(policy.version, policy.weights) == policy.version.digest


async def sample(engine: VllmEngine, request: GenerateRequest) -> tuple[Completion, ...]:
    (group,) = await engine.generate([request])
    return tuple(group)


def change(policy: Policy, name: str, folder: Path) -> Policy:
    """The policy with one tensor changed, as the learner has it and as published."""
    model = deepcopy(policy.model)
    with torch.no_grad():
        tensor = model.state_dict()[name]
        tensor += (
            0.5
            * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))
            * tensor.std()
        )
    return publish(model, 9, folder)


async def test_nothing_is_sampled_before_a_version_is_loaded(unloaded_refusal):
    assert "call load first" in unloaded_refusal


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prompt_length", [6, CACHED_PROMPT])
async def test_recorded_logprobs_are_the_learners(
    fast_engine, policies, temperature, prompt_length
):
    await load(fast_engine, policies.first)
    request = ask(prompt_length, 8, temperature=temperature)

    group = await sample(fast_engine, request)

    found = gap(policies.first, request, group)
    print(f"max |actor - learner| at T={temperature}, prompt {prompt_length}: {found:.2e}")
    assert found <= FLOAT32_GAP_MAX


async def test_an_engine_one_version_behind_is_found_out(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(6, 8)

    group = await sample(fast_engine, request)

    behind = gap(policies.stepped, request, group)
    print(f"max |actor - learner| one optimizer step (1e-5) behind: {behind:.2e}")
    assert behind > FLOAT32_GAP_MAX


async def test_after_a_reload_samples_come_from_the_new_version(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(6, 8)
    before = await sample(fast_engine, request)

    await load(fast_engine, policies.stepped)
    after = await sample(fast_engine, request)

    assert fast_engine.version == policies.stepped.version
    assert gap(policies.stepped, request, after) <= FLOAT32_GAP_MAX
    assert {span for c in before for span in c.spans} == {
        VersionSpan(start=0, end=24, lineage=0, step=0)
    }
    assert {span for c in after for span in c.spans} == {
        VersionSpan(start=0, end=24, lineage=0, step=1)
    }


async def test_no_token_is_sampled_from_a_cache_of_the_old_version(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(CACHED_PROMPT)
    await sample(fast_engine, request)
    await sample(fast_engine, request)

    await load(fast_engine, policies.other)
    group = await sample(fast_engine, request)

    assert gap(policies.other, request, group) <= FLOAT32_GAP_MAX


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"])
async def test_a_version_that_changed_one_module_is_served_from_no_older_cache(
    fast_engine, policies, tmp_path, name
):
    await load(fast_engine, policies.first)
    request = ask(CACHED_PROMPT)
    await sample(fast_engine, request)
    new = change(policies.first, name, tmp_path)

    assert await fast_engine.load(new.version, new.weights, frozenset({name})) == new.version.digest

    group = await sample(fast_engine, request)
    assert gap(new, request, group) <= FLOAT32_GAP_MAX
    assert gap(policies.first, request, group) > 10 * FLOAT32_GAP_MAX


async def test_the_check_above_would_see_a_stale_cache(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(CACHED_PROMPT)
    await sample(fast_engine, request)

    body = build_update_body(policies.other.weights, None, None)
    for path, what in (("/start_weight_update", None), ("/update_weights", body)):
        await fast_engine._server.call(path, body=what, seconds_max=60)
    await fast_engine._server.call("/finish_weight_update", body={}, seconds_max=60)
    await fast_engine._server.call("/resume", seconds_max=60, version="0.0")
    group = await sample(fast_engine, request)
    fast_engine._version = None

    assert gap(policies.other, request, group) > 1000 * FLOAT32_GAP_MAX


async def test_a_sample_depends_on_its_own_seed_and_on_nobody_beside_it(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(6, 8)
    crowd = [ask(length, 3) for length in (2, 9, 40)]

    together = (await fast_engine.generate([*crowd, request]))[-1]
    alone = [
        (await sample(fast_engine, replace(request, seeds=(seed,))))[0] for seed in request.seeds
    ]

    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert max_logprob_gap([c.logprobs for c in together], [c.logprobs for c in alone]) <= (
        FLOAT32_GAP_MAX
    )
    assert len({c.token_ids for c in together}) == len(request.seeds)


async def test_prompts_that_do_not_fit_into_one_pass_of_the_model_are_sampled_all_the_same(
    fast_engine, policies
):
    """vLLM ends where it has to cut a prompt that is sampled by a seed: a CPU's noise cannot be taken back."""
    await load(fast_engine, policies.first)
    long = ask(PASS_TOKENS // 8 + 50, 1, max_new_tokens=8)  # the server takes eight at a time
    requests = [replace(long, prompt_ids=(n, *long.prompt_ids)) for n in range(16)]

    groups = await fast_engine.generate(requests)

    found = [gap(policies.first, *one) for one in zip(requests, groups, strict=True)]
    assert max(found) <= FLOAT32_GAP_MAX


async def test_greedy_samples_are_all_the_same(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(6, 4, temperature=0.0)

    group = await sample(fast_engine, request)

    assert len({completion.token_ids for completion in group}) == 1
    assert gap(policies.first, request, group) <= FLOAT32_GAP_MAX


async def test_only_our_end_tokens_end_a_sample_and_none_before_the_minimum(fast_engine, policies):
    await load(fast_engine, policies.first)
    free = await sample(fast_engine, ask(6, 8))
    end = free[0].token_ids[5]

    stopped = (await sample(fast_engine, ask(6, 8, stop_token_ids=(end,))))[0]
    held = await sample(fast_engine, ask(6, 8, stop_token_ids=(end,), min_new_tokens=12))

    assert {c.finish for c in free} == {"length"}
    assert {len(c.token_ids) for c in free} == {24}
    assert stopped.finish == "stop"
    assert stopped.token_ids == free[0].token_ids[: free[0].token_ids.index(end) + 1]
    assert all(end not in c.token_ids[:12] for c in held)
    assert all(len(c.token_ids) >= 12 for c in held)


async def test_a_prompt_that_does_not_fit_is_refused_and_hurts_nobody_else(fast_engine, policies):
    await load(fast_engine, policies.first)

    with pytest.raises(EngineError, match="max_model_length 512; raise it to 524"):
        await sample(fast_engine, ask(500))
    for prompt in ((), (5, 10**6), (-1, 5)):
        with pytest.raises(EngineError, match="ids from 0 to"):
            await sample(fast_engine, replace(ask(4), prompt_ids=prompt))
    with pytest.raises(EngineError, match="400"):
        await sample(fast_engine, ask(4, stop_token_ids=(10**6,)))

    assert len(await sample(fast_engine, ask(4))) == 4


async def test_a_flipped_bit_in_the_file_changes_the_digest_and_is_never_served(
    fast_engine, policies, tmp_path
):
    await load(fast_engine, policies.first)
    bytes_ = bytearray(policies.first.weights.read_bytes())
    bytes_[-4000] ^= 1
    flipped = tmp_path / "flipped"
    flipped.write_bytes(bytes_)

    digest = await fast_engine.load(policies.first.version, flipped)

    assert digest == digest_tensors(load_weights(flipped))
    assert digest != policies.first.version.digest
    assert fast_engine.version is None


async def test_a_file_without_a_fused_part_is_refused_before_it_is_loaded(
    fast_engine, policies, tmp_path
):
    await load(fast_engine, policies.first)
    tensors = load_weights(policies.first.weights)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    part = tmp_path / "part"
    save_weights(tensors, part)

    with pytest.raises(EngineError, match="lack 1 of the model's tensors"):
        await fast_engine.load(policies.other.version, part)

    request = ask(6)
    assert fast_engine.version == policies.first.version
    assert gap(policies.first, request, await sample(fast_engine, request)) <= FLOAT32_GAP_MAX


async def test_a_load_in_the_middle_of_a_batch_never_mixes_versions(fast_engine, policies):
    await load(fast_engine, policies.first)
    request = ask(6, 16, max_new_tokens=64)

    running = asyncio.create_task(sample(fast_engine, request))
    await asyncio.sleep(0.05)
    assert not running.done()
    await load(fast_engine, policies.other)

    old, new = await running, await sample(fast_engine, request)
    assert {(s.start, s.end, s.step) for c in old for s in c.spans} == {(0, 64, 0)}
    assert gap(policies.first, request, old) <= FLOAT32_GAP_MAX
    assert gap(policies.other, request, new) <= FLOAT32_GAP_MAX


async def test_a_cancelled_batch_leaves_the_server_free(fast_engine, policies):
    await load(fast_engine, policies.first)

    running = asyncio.create_task(sample(fast_engine, ask(6, 16, max_new_tokens=400)))
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    await load(fast_engine, policies.other)
    request = ask(6)
    assert gap(policies.other, request, await sample(fast_engine, request)) <= FLOAT32_GAP_MAX


def processes_of(engine: VllmEngine) -> list[psutil.Process]:
    return psutil.Process(engine._server.pid).children(recursive=True)


def named(engine: VllmEngine, part: str) -> psutil.Process:
    (found,) = [p for p in processes_of(engine) if part in " ".join([p.name(), *p.cmdline()])]
    return found


def answer_http(addresses: list[tuple[str, int]], seconds: float = 1.0) -> list[bytes]:
    """What each address says to an HTTP request within the time, said to all of them at once."""
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(address, timeout=60))
            for address in addresses
        ]
        for connection in connections:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(seconds)
        return [first_bytes(connection) for connection in connections]


def first_bytes(connection: socket.socket) -> bytes:
    connection.setblocking(False)
    try:
        return connection.recv(16)
    except OSError:
        return b""


async def test_nothing_answers_on_a_tcp_port(fast_engine):
    def listening(process: psutil.Process) -> list[tuple[str, int]]:
        found = process.net_connections("tcp")
        return [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN]

    assert not listening(named(fast_engine, "api_server"))
    ports = [address for process in processes_of(fast_engine) for address in listening(process)]
    assert all(host in {"127.0.0.1", "::1"} for host, _ in ports)
    assert not [said for said in answer_http(ports) if said.startswith(b"HTTP/")]


def private_folder(engine: VllmEngine) -> Path:
    return engine._server.private_dir


async def kill_while_sampling(engine: VllmEngine, part: str) -> None:
    running = asyncio.create_task(sample(engine, ask(6, 16, max_new_tokens=400)))
    await asyncio.sleep(0.2)
    assert not running.done()
    os.kill(named(engine, part).pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        await running


async def test_every_process_of_a_server_shows_where_it_stands_when_asked_and_goes_on(
    fast_engine, policies
):
    await load(fast_engine, policies.first)
    running = asyncio.create_task(sample(fast_engine, ask(6, 8, max_new_tokens=200)))
    api, core = named(fast_engine, "api_server"), named(fast_engine, "EngineCore")
    log = fast_engine._server._process.log_path

    asked = ask_for_stacks(fast_engine._server.pid)

    assert {fast_engine._server.pid, api.pid, core.pid} <= set(asked)
    async with asyncio.timeout(60):
        while not all(f"{END} {one.pid} --" in log.read_text() for one in (api, core)):
            await asyncio.sleep(0.05)
    said = log.read_text()
    assert "run_engine_core" in said
    assert "Server.serve" in said.partition("asyncio tasks: ")[2]
    assert len(await running) == 8


async def test_an_engine_killed_while_sampling_is_an_error_and_the_next_load_restarts_it(
    fast_engine, policies
):
    await load(fast_engine, policies.first)
    request = ask(6, 8)
    before, folder = await sample(fast_engine, request), private_folder(fast_engine)

    await kill_while_sampling(fast_engine, "EngineCore")

    assert fast_engine.version is None
    with pytest.raises(EngineError, match="again after a crash"):
        await fast_engine.generate([request])
    start = time.monotonic()
    await load(fast_engine, policies.first)
    print(f"restart and load took {time.monotonic() - start:.1f} s")
    assert await sample(fast_engine, request) == before
    assert not folder.exists()


async def test_a_killed_api_server_takes_the_engine_process_along(fast_engine, policies):
    await load(fast_engine, policies.first)
    processes, folder = processes_of(fast_engine), private_folder(fast_engine)

    await kill_while_sampling(fast_engine, "api_server")
    await fast_engine.stop()

    assert fast_engine.version is None
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive
    assert not folder.exists()
