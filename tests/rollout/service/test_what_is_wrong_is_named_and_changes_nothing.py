"""A call that is wrong, or that is not offered, is refused by its field; the model, other calls and other tenants go on."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from service_kit import SEQUENCE, add_tensor, logprobs_of, sequence_datum, wire_datum

SAMPLED = {"logprobs": [-5.0] * 6, "advantages": [1.0] * 6}
LONG = list(range(3, 203)) * 25


def image_datum():
    datum = sequence_datum()
    datum.model_input.add().image.data = b"png"
    return datum


def topk_datum():
    datum = wire_datum(SEQUENCE[:-1], [], {})
    datum.loss_fn_inputs[0].value.shape[:] = [6, 2]
    datum.loss_fn_inputs[0].value.dense = np.ones(12, "<i8").tobytes()
    return datum


def with_extra():
    datum = sequence_datum()
    add_tensor(datum, "mask", np.ones(6, "<f4"))
    return datum


BAD_LOSSES = [
    (
        "nan weights",
        "cross_entropy",
        lambda: sequence_datum(weights=[1, 1, math.nan, 1, 1, 1]),
        {},
        "weights[2]: expected a finite number, got nan",
    ),
    (
        "infinite advantage",
        "ppo",
        lambda: sequence_datum(**SAMPLED | {"advantages": [math.inf] * 6}),
        {},
        "advantages[0]: expected a finite number, got inf",
    ),
    (
        "short weights",
        "cross_entropy",
        lambda: sequence_datum(weights=[1, 1]),
        {},
        "data[1].loss_fn_inputs.weights: expected 6 values, one for each token of model_input, got 2",
    ),
    (
        "short targets",
        "cross_entropy",
        lambda: wire_datum(SEQUENCE, [5], {}),
        {},
        "target_tokens: expected 7 values",
    ),
    (
        "no tokens",
        "cross_entropy",
        lambda: wire_datum([], [], {}),
        {},
        "model_input: expected 1 to 4096 tokens",
    ),
    (
        "too many tokens",
        "cross_entropy",
        lambda: sequence_datum(LONG),
        {},
        "model_input: expected 1 to 4096 tokens, which the base model can see at once, got 4999",
    ),
    (
        "token out of range",
        "cross_entropy",
        lambda: wire_datum([5, 999], [5, 6], {}),
        {},
        "model_input[1]: token 999 is outside the vocabulary of 259",
    ),
    (
        "target out of range",
        "cross_entropy",
        lambda: wire_datum([5, 6], [5, -1], {}),
        {},
        "target_tokens[1]: token -1 is outside",
    ),
    (
        "several targets",
        "cross_entropy",
        topk_datum,
        {},
        "expected one axis, a value for each input token, got shape [6, 2]",
    ),
    (
        "missing advantages",
        "ppo",
        lambda: sequence_datum(logprobs=[-5.0] * 6),
        {},
        "loss_fn_inputs.advantages: this loss needs it",
    ),
    (
        "unknown input",
        "cross_entropy",
        with_extra,
        {},
        "loss_fn_inputs.mask: this loss reads target_tokens, weights only",
    ),
    (
        "unknown loss",
        "stable_reinforce",
        sequence_datum,
        {},
        "loss_fn: 'stable_reinforce' is not offered (it needs records that sampling with",
    ),
    (
        "a loss of nobody's",
        "reinforce",
        sequence_datum,
        {},
        "loss_fn: 'reinforce' is not offered; there are cross_entropy",
    ),
    (
        "a negative beta",
        "dro",
        lambda: sequence_datum(**SAMPLED),
        {"beta": -0.1},
        "loss_fn_config.beta: expected 0 or more, got -0.1",
    ),
    (
        "unknown setting",
        "ppo",
        lambda: sequence_datum(**SAMPLED),
        {"kl_coeff": 0.1},
        "loss_fn_config.kl_coeff: ppo has no such setting",
    ),
    (
        "distances for bounds",
        "ppo",
        lambda: sequence_datum(**SAMPLED),
        {"clip_high_threshold": 0.2},
        "bounds of the ratio, not distances from 1",
    ),
    (
        "an image",
        "cross_entropy",
        image_datum,
        {},
        "data[1].model_input: an image or sound is not offered",
    ),
    (
        "a loss that overflows",
        "importance_sampling",
        lambda: sequence_datum(logprobs=[-5.0] * 6, advantages=[3e38] * 6),
        {},
        "not finite; nothing was added",
    ),
    (
        "a gradient that overflows",
        "cross_entropy",
        lambda: sequence_datum(weights=[3e38, -3e38, 3e38, -3e38, 0, 0]),
        {},
        "the loss of this call is nan",
    ),
]


@pytest.mark.parametrize(
    ("loss", "make", "config", "words"), [c[1:] for c in BAD_LOSSES], ids=[c[0] for c in BAD_LOSSES]
)
async def test_a_loss_that_cannot_be_is_refused_and_the_gradient_stays(
    service, loss, make, config, words
):
    client = (await service()).client()
    plain = await client.begin(seed=1, number=0)
    await client.answer(await client.backward([sequence_datum()]))
    spoilt = await client.begin(seed=1, number=1)
    await client.answer(await client.backward([sequence_datum()]))
    extra = {} if loss == "cross_entropy" else SAMPLED
    refused = await client.answer(
        await client.backward([sequence_datum(**extra), make()], loss, **config)
    )
    assert words in refused["error"], refused
    assert refused["category"] == "user"
    stepped = [(await client.answer(await client.step()))["metrics"]]
    client.model, client.seq = plain, 1
    stepped.append((await client.answer(await client.step()))["metrics"])
    assert stepped[0]["gradient_norm:max"] == stepped[1]["gradient_norm:max"]
    assert spoilt != plain


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"learning_rate": -1.0}, "adam_params.learning_rate: expected 0 <= value < inf, got -1.0"),
        ({"beta2": 1.0}, "adam_params.beta2: expected 0 <= value < 1, got 1.0"),
        ({"nesterov": 1.0}, "unknown field `nesterov`"),
    ],
)
async def test_a_step_that_cannot_be_is_refused_and_the_gradient_stays(service, params, words):
    client = (await service()).client()
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    assert words in (await client.answer(await client.step(**params)))["error"]
    assert (await client.answer(await client.step()))["metrics"]["num_gathered:sum"] == 1


@pytest.mark.parametrize(
    ("steps_before", "params"),
    [
        (0, {"eps": 0.0}),
        (0, {"eps": 1e-300}),
        (0, {"learning_rate": 1e38}),
        (1, {"learning_rate": 1e300, "grad_clip_norm": 1e-3}),
        (1, {"weight_decay": 1e300}),
    ],
)
async def test_a_step_that_would_spoil_the_weights_is_refused_and_the_next_is_as_if_it_had_not_been(
    service, params, steps_before
):
    client = (await service()).client()
    stepped = []
    for number, spoils in enumerate((False, True)):
        await client.begin(seed=1, number=number)
        for _ in range(steps_before):
            await client.answer(await client.backward([sequence_datum()]))
            await client.answer(await client.step())
        await client.answer(await client.backward([sequence_datum()]))
        if spoils:
            said = await client.answer(await client.step(**params))
            assert "would not be finite behind this step; nothing was changed" in said["error"]
        await client.answer(await client.step(grad_clip_norm=0.5))
        saved = await client.answer(await client.save_state("after"))
        stepped.append(await digest_of(client, saved["path"]))
    assert stepped[0] == stepped[1]


async def digest_of(client, path):
    """Of a state: two that are equal are loaded as one."""
    await client.answer(await client.load_state(path, optimizer=True))
    return msgspec.json.encode(
        [
            logprobs_of(await client.answer(await client.backward([sequence_datum()]))).tolist(),
            (await client.answer(await client.step()))["metrics"]["gradient_norm:max"],
            logprobs_of(await client.answer(await client.backward([sequence_datum()]))).tolist(),
        ]
    )


async def test_gradients_that_add_up_to_more_than_a_number_holds_are_not_added(service):
    client = (await service()).client()
    await client.begin()
    weights = [1e16] * 6
    said = {}
    for _ in range(40):
        said = await client.answer(await client.backward([sequence_datum(weights=weights)]))
        if isinstance(said, dict):
            break
        weights = [one * 3 for one in weights]
    assert "which no step can be taken on; nothing was added" in said["error"]
    assert (await client.answer(await client.step()))["metrics"]["gradient_norm:max"] > 1e17


async def test_a_step_without_a_gradient_is_refused(service):
    client = (await service()).client()
    await client.begin()
    refused = await client.answer(await client.step())
    assert "no gradient has been gathered since the last step" in refused["error"]


async def test_what_is_not_offered_in_a_models_order_takes_its_place_there(service):
    client = (await service()).client()
    model = await client.begin()
    ask = {"model_id": model, "seq_id": 1, "path": "x", "optimizer": False}
    said = await client.answer(await client.post("load_weights", ask))
    assert "there is no state 'x'" in said["error"]
    said = await client.answer(await client.save_state("x", seq=2, overwrite=True))
    assert "overwrite: another state under the same name is not offered" in said["error"]
    ask = {"model_id": model, "seq_id": 3, "path": "a", "ttl_seconds": 60}
    said = await client.answer(await client.post("save_weights_for_sampler", ask))
    assert "ttl_seconds: expected 3600 (an hour) to" in said["error"]
    for seq, words in ((4, None), (5, "names a sampler that this model was saved as before")):
        said = await client.answer(await client.save("same", seq=seq))
        assert (words or "tinker://") in said.get("error", said.get("path"))
    external = {"model_id": model, "seq_id": 6, "path": "x", "type": "save_weights_external"}
    said = await client.answer(await client.post("save_weights_external", external))
    assert "save_weights_external is not offered by this service" in said["error"]
    assert (await client.state())["calls"] == 6


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k is not offered"),
        ({"record_stability_info": True}, "record_stability_info is not offered"),
        ({"topk_prompt_logprobs": 129}, "topk_prompt_logprobs: expected 0 to 128, got 129"),
        ({"topk_sample_logprobs": -1}, "topk_sample_logprobs: expected 0 to 128, got -1"),
        ({"prompt_logprobs_last_n": 1}, "expected 1 to 1 beside prompt_logprobs, got 1"),
        (
            {"target_prompt_logprobs": {"data": [1], "shape": [1]}},
            "expected token ids of shape [1, 1",
        ),
        ({"target_prompt_logprobs": {"data": [700], "shape": [1, 1]}}, "token 700 is outside"),
        ({"params": {"top_p": 0.0}}, "top_p: expected 0 < top_p <= 1, got 0.0"),
        ({"params": {"top_k": 0}}, "top_k: expected -1 (all tokens) or 1 to 2147483647, got 0"),
        ({"params": {"max_tokens": 5000}}, "max_tokens: expected 1 to 4094"),
        ({"params": {"temperature": -1.0}}, "temperature: expected 0 or more, got -1.0"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, "a part of type 'image'"),
        (
            {"prompt": {"chunks": [{"tokens": [1, 700]}]}},
            "expected tokens of the vocabulary of 259, got 700",
        ),
        ({"num_samples": 0}, "num_samples: expected 1 to"),
        ({"beam_width": 2}, "unknown field `beam_width`"),
        ({"sampling_session_id": "nobody"}, "there is no sampler 'nobody'"),
    ],
)
async def test_a_sample_that_cannot_be_drawn_is_refused(service, more, words):
    client = (await service()).client()
    await client.begin()
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    status, said = await client.sample(sampler, **more)
    assert 400 <= status < 429 and status not in (408, 409), status
    assert words in said["detail"], said


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"train_unembed": True}, "an adapter on the unembedding is not offered"),
        ({"train_mlp": False, "train_attn": False}, "expected train_attn or train_mlp"),
        ({"rank": 0}, "lora_config.rank: expected 1 to 256, got 0"),
        ({"dropout": 0.1}, "unknown field `dropout`"),
    ],
)
async def test_an_adapter_that_cannot_be_is_refused(service, lora, words):
    client = (await service()).client()
    await client.begin()
    ask = {
        "session_id": client.session,
        "model_seq_id": 9,
        "base_model": "tiny",
        "lora_config": {"rank": 4, "train_unembed": False} | lora,
    }
    status, said = await client.post("create_model", ask)
    assert (status in (400, 422), words in said["detail"]) == (True, True), said


async def test_a_service_that_skips_the_unembedding_says_so_and_makes_the_rest(service):
    client = (await service(skip_unembed=True)).client()
    status, said = await client.post("create_session", {"sdk_version": "0"})
    assert (status, "leaves out what train_unembed asks for" in said["warning_message"]) == (
        200,
        True,
    )
    client.session = said["session_id"]
    asked = await client.begin(number=0, train_unembed=True)
    plain = await client.begin(number=1)
    chains = []
    for client.model in (asked, plain):
        await client.answer(await client.backward([sequence_datum()], seq=1))
        chains.append((await client.state())["chain"])
    assert chains[0] == chains[1]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.38.0", False),
        ("0.36.0", False),
        ("rollout", False),
        ("0.38.1", True),
        ("1.0", True),
        ("0.39.0.dev1", True),
        ("9" * 5000, True),
    ],
)
async def test_clients_newer_than_tested_are_told_and_served(service, version, told):
    client = (await service()).client()
    status, said = await client.post(
        "create_session", {"sdk_version": version, "a_flag_of_tomorrow": 1}
    )
    words = "is newer than 0.38.0, with which this service was tested"
    assert (status, words in said.get("warning_message", "")) == (200, told)
    client.session = said["session_id"]
    await client.begin()
    ask = {"model_id": client.model, "seq_id": 1, "adam_params": {}, "sign": True}
    said = await client.answer(await client.post("optim_step", ask))
    assert "unknown field `sign`" in said["error"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("create_model", {"optimizer_config": {"type": "adamw", "nesterov": True}}),
        ("asample", {"prompt": {"chunks": [{"tokens": [5], "nesterov": True}]}}),
    ],
)
async def test_what_a_newer_client_could_say_inside_of_a_part_is_refused_by_name(
    service, path, more
):
    client = (await service()).client()
    await client.begin()
    sampler = (await client.answer(await client.save()))["sampling_session_id"]
    if path == "asample":
        status, said = await client.sample(sampler, **more)
    else:
        ask = {"session_id": client.session, "model_seq_id": 5, "base_model": "tiny"}
        ask |= {"lora_config": {"rank": 4, "train_unembed": False}}
        status, said = await client.post(path, ask | more)
    assert (status, "unknown field `nesterov`" in said["detail"]) == (400, True), said


async def test_a_model_is_made_once_and_never_otherwise(service):
    client = (await service()).client()
    model = await client.begin(seed=1)
    await client.answer(await client.backward([sequence_datum()]))
    assert await client.begin(seed=1) == model
    assert (await client.state())["calls"] == 1
    with pytest.raises(AssertionError, match="was created otherwise"):
        await client.begin(seed=2)
    with pytest.raises(AssertionError, match="whose weights are all trained"):
        status, said = await client.post(
            "create_model", {"session_id": client.session, "model_seq_id": 3, "base_model": "tiny"}
        )
        assert status == 200, said


async def test_no_key_sees_what_another_has(service):
    running = await service()
    mine, yours = running.client("mine"), running.client("yours")
    model = await mine.begin()
    saved = await mine.answer(await mine.save("kept"))
    sampler = (await mine.answer(await mine.save()))["sampling_session_id"]
    await yours.begin()
    yours.model = model
    refused = [
        await yours.backward([sequence_datum()], seq=3),
        await yours.step(seq=3),
        await yours.get(f"rollout/models/{model}"),
        await yours.post("get_info", {"model_id": model}),
        await yours.post("retrieve_future", {"request_id": f"{model}#1"}),
        await yours.sample(sampler),
        await yours.post("session_heartbeat", {"session_id": mine.session}),
        await yours.post(
            "create_sampling_session",
            {
                "session_id": yours.session,
                "sampling_session_seq_id": 4,
                "model_path": saved["path"],
            },
        ),
    ]
    assert [status for status, _ in refused] == [404] * len(refused), refused
    assert (await mine.state())["calls"] == 2
    yours.key = "tml-sk-rollout-0000000000000000-" + "A" * 43
    status, said = await yours.step(seq=3)
    assert (status, "the key is not valid here" in said["detail"]) == (401, True)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("create_custom_loss", "create_custom_loss is not offered"),
        ("copy_weights", "copy_weights is not offered"),
        ("brew_coffee", "POST /api/v1/brew_coffee is not offered"),
    ],
)
async def test_a_route_that_is_not_offered_says_so(service, path, words):
    status, said = await (await service()).client().post(path, {})
    assert (status in (404, 422), words in said["detail"]) == (True, True), said


async def test_a_session_that_has_finished_begins_nothing_new(service):
    client = (await service()).client()
    await client.begin()
    ask = {"reason": {"type": "success"}, "detail": None}
    assert (await client.post(f"sessions/{client.session}/finish", ask))[0] == 200
    await client.answer(await client.backward([sequence_datum()]))
    with pytest.raises(AssertionError, match="has finished; create another"):
        await client.begin(number=1)
