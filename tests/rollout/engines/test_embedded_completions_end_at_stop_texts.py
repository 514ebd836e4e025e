"""The embedded engine ends a sample at its stop text, in every kind of batch, and changes no token before it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from rollout.models.resolve import resolve_model
from rollout.rendering.tokenizer import TOKENIZER_FILE, load_tokenizer

KINDS = [
    {},
    {"batch_groups": 4},
    {"exact": False, "batch_groups": 8},
]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """Its tokens are bytes; those of the models here are the first of them: ``!`` to ``]``."""
    return resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path_factory.mktemp("cache")).path


@pytest.fixture
def decode(tokenizer_folder):
    return load_tokenizer(tokenizer_folder).decode


@pytest.fixture
def start(tiny_model, start_engine, tokenizer_folder, tmp_path):
    async def begin(kind="qwen2", **options):
        engine = await start_engine(tiny_model(kind), **options)
        shutil.copy(tokenizer_folder / TOKENIZER_FILE, tmp_path / "model")
        return engine

    return begin


def stopping(request, *stops, **sampling):
    return replace(request, sampling=replace(request.sampling, stop=stops, **sampling))


def first_end(text, stops, least=0):
    """How many of the text's tokens, one a character, are sampled."""
    ends = [
        text.find(stop, max(0, least - len(stop) + 1)) + len(stop) for stop in stops if stop in text
    ]
    return min((end for end in ends if end > least), default=None)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
async def test_a_sample_ends_with_the_token_that_completes_a_stop_text(
    kind, options, start, request_of, decode
):
    engine = await start(kind, **options)
    free = [request_of(n, seed=n, max_new_tokens=20) for n in (4, 5, 5, 8)]
    whole = await engine.generate(free)
    texts = [[decode(one.token_ids) for one in group] for group in whole]
    stops = (texts[0][0][5:7], texts[1][1][9:11], texts[3][2][18:20])

    stopped = await engine.generate([stopping(one, *stops) for one in free])

    ends = set()
    for group, free_group, said in zip(stopped, whole, texts, strict=True):
        for one, all_of_it, text in zip(group, free_group, said, strict=True):
            end = first_end(text, stops)
            assert one.finish == ("length" if end is None else "stop")
            assert one.token_ids == all_of_it.token_ids[:end]
            assert one.logprobs == pytest.approx(all_of_it.logprobs[:end], abs=5e-6)
            assert one.spans[0].end == len(one.token_ids)
            ends.add(end)
    assert {7, 11, 20, None} <= ends


async def test_in_exact_a_sample_is_the_same_bits_whoever_shares_its_batch(
    start, request_of, decode
):
    engine = await start(batch_groups=4)
    request = request_of(5, seed=3, max_new_tokens=16)
    [whole] = await engine.generate([request])
    asked = stopping(request, decode(whole[1].token_ids)[4:6])

    [alone] = await engine.generate([asked])
    together = await engine.generate(
        [
            *(
                stopping(request_of(5, seed=n, max_new_tokens=16), *asked.sampling.stop)
                for n in range(3)
            ),
            asked,
        ]
    )

    assert together[-1] == alone
    assert "stop" in {one.finish for one in alone}


async def test_nothing_ends_a_sample_before_its_least_length(start, request_of, decode):
    engine = await start()
    request = request_of(5, max_new_tokens=20, min_new_tokens=8)
    [whole] = await engine.generate([request])
    text = decode(whole[0].token_ids)

    [held] = await engine.generate([stopping(request, text[5:7])])
    [across] = await engine.generate([stopping(request, text[7:9])])

    assert held[0].token_ids == whole[0].token_ids[: first_end(text, [text[5:7]], least=8)]
    assert across[0].token_ids == whole[0].token_ids[:9]


async def test_a_text_of_the_prompt_ends_nothing_and_one_that_begins_in_a_prefix_does(
    start, request_of, decode
):
    engine = await start()
    request = request_of(5, size=1, max_new_tokens=20)
    [[whole]] = await engine.generate([request])
    text = decode(whole.token_ids)
    behind = replace(
        request,
        prompt_ids=request.prompt_ids + whole.token_ids[:6],
        sampling=replace(request.sampling, max_new_tokens=14, temperature=0.0),
    )
    [[rest]] = await engine.generate([behind])
    across = text[4:6] + decode(rest.token_ids[:1])

    [[in_prompt]] = await engine.generate([stopping(behind, text[3:6])])
    [[prompt_only]] = await engine.generate([stopping(behind, across)])
    [[begun]] = await engine.generate([stopping(replace(behind, begun=6), across)])

    assert in_prompt == rest
    assert prompt_only == rest
    assert (begun.finish, begun.token_ids) == ("stop", rest.token_ids[:1])


async def test_progress_and_interruption_know_of_stop_texts(start, request_of, decode):
    engine = await start(exact=False, batch_groups=8)
    request = request_of(5, size=2, max_new_tokens=400)
    [whole] = await engine.generate([request])
    asked = stopping(request, decode(whole[0].token_ids)[:3])

    going = asyncio.create_task(engine.generate([asked]))
    while not any(one.num_tokens > 5 for row in engine.progress() for one in row):
        await asyncio.sleep(0)
        assert not going.done(), "ended before it could be interrupted"
    states = engine.progress()[0]
    engine.interrupt()
    [(first, second)] = await going

    assert (states[0].state, states[0].num_tokens) == ("ended", 3)
    assert (first.finish, first.token_ids) == ("stop", whole[0].token_ids[:3])
    assert second.finish == "interrupted"
