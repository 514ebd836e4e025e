"""A real vLLM server ends samples at stop texts, at the token where the embedded engine would end the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.engines.vllm.wire import build_generate_body, parse_completion
from rollout.rendering.tokenizer import load_tokenizer
from rollout_vllm.stops import REPLACEMENT, StopScanner

from .conftest import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]


def stopping(request, *stops, **sampling):
    return replace(request, sampling=replace(request.sampling, stop=stops, **sampling))


def end_of(decode, tokens, stops, least=0, begun=()):
    scanner = StopScanner(decode, stops, least=least, begun=begun)
    return next((place + 1 for place, token in enumerate(tokens) if scanner.push(token)), None)


def texts_of(decode, group, first):
    """What some samples say behind their first tokens, where it is whole characters."""
    pieces = [
        piece
        for one in group
        for piece in decode(one.token_ids[first:]).split(REPLACEMENT)
        if piece
    ]
    return tuple(sorted({piece[:2] for piece in pieces if len(piece) > 1}))[:4]


@pytest.mark.parametrize("least", [0, 9])
@pytest.mark.parametrize("name", ["fast", "exact"])
async def test_every_sample_ends_where_the_rule_ends_it(
    name, least, fast_engine, exact_engine, policies, untied_policies
):
    engine = {"fast": fast_engine, "exact": exact_engine}[name]
    chosen = {"fast": policies, "exact": untied_policies}[name]
    decode = load_tokenizer(chosen.model_dir).decode
    await engine.load(chosen.first.version, chosen.first.weights)
    request = ask(6, 8, max_new_tokens=40, min_new_tokens=least)
    [whole] = await engine.generate([request])
    stops = texts_of(decode, whole, 8)
    assert stops, "no sample says a whole character there: take other tokens"

    [stopped] = await engine.generate([stopping(request, *stops)])

    for one, all_of_it in zip(stopped, whole, strict=True):
        end = end_of(decode, all_of_it.token_ids, stops, least)
        assert one.token_ids == all_of_it.token_ids[:end]
        assert one.logprobs == pytest.approx(all_of_it.logprobs[:end], abs=1e-5)
        assert one.finish == ("length" if end is None else "stop")
        assert one.spans[-1].end == len(one.token_ids)
    assert "stop" in {one.finish for one in stopped}


async def test_the_server_itself_ends_the_sample_and_knows_its_beginning(fast_engine, policies):
    decode = load_tokenizer(policies.model_dir).decode
    await fast_engine.load(policies.first.version, policies.first.weights)
    request = ask(6, 2, max_new_tokens=30)
    [whole] = await fast_engine.generate([request])
    behind = [
        replace(
            request,
            prompt_ids=request.prompt_ids + one.token_ids[:begun],
            begun=begun,
            seeds=(1,),
            sampling=replace(request.sampling, temperature=0.0),
        )
        for one in whole
        for begun in range(1, 30)
    ]
    rests = [rest for [rest] in await fast_engine.generate(behind)]
    asked, rest, across = next(
        (one, rest, text)
        for one, rest in zip(behind, rests, strict=True)
        if len(text := decode((one.prompt_ids[-1], rest.token_ids[0]))) == 2
        and REPLACEMENT not in text
    )
    tokenizer = fast_engine._stops.file

    async def sample(*stops):
        body = build_generate_body(stopping(asked, *stops), 1, tokenizer=tokenizer)
        return parse_completion(await fast_engine._ask(fast_engine._server, body))

    assert len(rest.token_ids) == 30
    assert (await sample()).token_ids == rest.token_ids
    stopped = await sample(across)
    assert (stopped.finish, stopped.token_ids) == ("stop", rest.token_ids[:1])
