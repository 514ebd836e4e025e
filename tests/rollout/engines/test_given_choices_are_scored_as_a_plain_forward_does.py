"""Choices that are given get the log-probabilities that a plain forward of the transformers model gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout.engines.embedded.generate import generate_batch, plan_batches
from rollout.engines.embedded.progress import GenerationWatch
from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.engine import require_servable
from rollout.errors import EngineError

CHOICES = ((7, 3, 11), (5,), (40, 40), (7, 3, 12, 9))


def plain_sums(model, prompt, choices):
    sums = []
    for choice in choices:
        ids = torch.tensor([[*prompt, *choice]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].double()
        picked = torch.log_softmax(logits, -1).gather(1, torch.tensor(choice)[:, None])
        sums.append(float(picked.sum()))
    return sums


def scored(request, choices=CHOICES):
    return replace(request, choices=choices)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "mistral"])
@pytest.mark.parametrize("options", [{}, {"exact": False, "batch_groups": 3}, {"batch_groups": 4}])
async def test_every_choice_has_the_sum_of_a_plain_forward(
    kind, options, tiny_model, start_engine, request_of
):
    model = tiny_model(kind)
    engine = await start_engine(model, **options)
    requests = [scored(request_of(n, size=1, seed=n)) for n in (5, 9, 9, 30)]

    results = await engine.generate(requests)

    for request, [found] in zip(requests, results, strict=True):
        sums = plain_sums(model, request.prompt_ids, CHOICES)
        assert found.choice_logprobs == pytest.approx(sums, abs=2e-5)
        best = max(range(len(CHOICES)), key=sums.__getitem__)
        assert found.token_ids == CHOICES[best]
        assert sum(found.logprobs) == pytest.approx(sums[best], abs=2e-5)
        assert found.finish == "stop"


async def test_choices_beside_sampled_requests_change_no_token_of_them(
    tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"), batch_groups=4)
    sampled = [request_of(n, seed=n) for n in (4, 8)]
    alone = await engine.generate(sampled)

    beside = await engine.generate([sampled[0], scored(request_of(6, size=1)), sampled[1]])

    assert [beside[0], beside[2]] == list(alone)


async def test_in_exact_the_sums_do_not_depend_on_the_neighbours(
    tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"), batch_groups=4)
    requests = [scored(request_of(n, size=1, seed=n)) for n in (5, 21, 8, 13, 5)]

    together = await engine.generate(requests)
    alone = [(await engine.generate([request]))[0] for request in requests]

    assert list(together) == alone


async def test_of_equal_choices_the_first_is_taken(tiny_model, start_engine, request_of):
    engine = await start_engine(tiny_model("qwen2"))

    [[found]] = await engine.generate([scored(request_of(5, size=1), ((9, 4), (9, 4)))])

    assert found.choice_logprobs[0] == found.choice_logprobs[1]
    assert found.token_ids == (9, 4)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (((4,), ()), "at least one token in every choice"),
        (((4,), (61,)), "outside the vocabulary of 61"),
        (((4,) * 600,), "positions, the model has 512"),
    ],
)
async def test_choices_that_cannot_be_scored_are_refused(
    choices, said, tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"))

    with pytest.raises(EngineError, match=said):
        await engine.generate([scored(request_of(5, size=1), choices)])


async def test_a_scoring_that_is_interrupted_comes_back_with_nothing(
    tiny_model, start_engine, request_of
):
    engine = await start_engine(tiny_model("qwen2"))
    requests = [scored(request_of(5, size=1))]
    watch = GenerationWatch(requests)
    watch.asked = True
    [plan] = plan_batches(requests, 1)

    [[found]] = generate_batch(engine._decoder, requests, plan, watch, engine._stops)

    assert (found.finish, found.token_ids) == ("interrupted", ())


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (((4,), ()), "at least one token in every choice"),
        (((4,), (61,)), "must have ids from 0 to 60"),
        (((4,) * 59,), "do not fit max_model_length 64; raise it to 65"),
    ],
)
def test_vllm_refuses_what_would_end_its_server(choices, said, request_of, tmp_path):
    settings = VllmSettings(
        model_dir=tmp_path,
        log_path=tmp_path / "log",
        dtype="float32",
        max_model_length=64,
        vocab_size=61,
    )

    with pytest.raises(EngineError, match=said):
        require_servable(scored(request_of(5, size=1), choices), settings)
    require_servable(scored(request_of(5, size=1), ((4,) * 58,)), settings)
