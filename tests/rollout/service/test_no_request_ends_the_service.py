"""Bodies that nobody foresaw, files that are gone, a disk that is full: told by name, to whom it concerns, and others go on."""

from __future__ import annotations

import asyncio

import pytest
from service_kit import PREFIX, sequence_datum

from rollout.errors import LedgerError
from rollout.service.refusals import WORDS_MAX

NESTED = b'{"sdk_version": "0", "user_metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
FAR = 2**70


async def send(client, path, body):
    headers = {"X-API-Key": client.key, "Content-Type": "application/json"}
    async with client.http.post(f"{PREFIX}/{path}", data=body, headers=headers) as reply:
        return reply.status, await reply.json()


async def saved_sampler(client):
    return (await client.answer(await client.save()))["sampling_session_id"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"params": {"top_k": FAR}}, "top_k: expected -1 (all tokens) or 1 to"),
        ({"params": {"stop": [FAR]}}, "stop: token 1180591620717411303424 is outside"),
        ({"params": {"stop": [-5]}}, "stop: token -5 is outside the vocabulary"),
        ({"params": {"stop": ["a"] * 65}}, "stop: expected up to 64 texts or tokens, got 65"),
        ({"seq": FAR}, "seq_id: expected 0 or more"),
        ({"num_samples": FAR}, "num_samples: expected 1 to 1024"),
        *(
            ({"target_prompt_logprobs": said}, "expected token ids of shape [1, 1 to 128]")
            for said in (
                {"shape": 5, "data": [1]},
                {"shape": [1, "a"], "data": [1]},
                {"shape": [1, 1.0], "data": [1]},
                {"shape": [1, True], "data": [1]},
                {"shape": [1, 1], "data": "a"},
                {"shape": None, "data": None},
                {"shape": [1, FAR], "data": [1]},
                {"shape": [1, 1], "data": [1.0]},
            )
        ),
        ({"target_prompt_logprobs": {"shape": [1, 1], "data": [FAR]}}, "is outside the vocabulary"),
    ],
)
async def test_numbers_of_no_kind_are_refused_before_they_are_kept(service, more, words):
    client = (await service()).client()
    await client.begin()
    sampler = await saved_sampler(client)
    status, said = await client.sample(sampler, **more)
    assert (status, words in said["detail"]) == (400, True), said
    assert (await client.answer(await client.sample(sampler, seq=9))).sequences


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("create_session", NESTED, "it is nested too deeply"),
        ("create_session", b'{"sdk_version": "\xff\xfe"}', "can't decode byte 0xff"),
        ("create_session", b'{"sdk_version": "\\ud800"}', "the body is no Session"),
        ("optim_step", b'{"model_id": "a", "seq_id": NaN}', "the body is no Placed"),
        ("optim_step", b"[" * 1_000_000, "the body is no Placed"),
        ("optim_step", b"", "the body is no Placed"),
        ("forward_backward", b"\x0a\xff\xff\xff\xff\x0f", "the body is no ForwardBackwardRequest"),
        ("forward_backward", b"\x0a\x02\xff\xfe", "the body is no ForwardBackwardRequest"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(service, path, body, words):
    client = (await service()).client()
    status, said = await send(client, path, body)
    assert (status, words in said["detail"]) == (400, True), said


@pytest.mark.parametrize("path", ["load_weights", "optim_step", "save_weights"])
@pytest.mark.parametrize("seq", [FAR, -FAR])
async def test_a_place_beyond_all_numbers_is_refused(service, path, seq):
    client = (await service()).client()
    model = await client.begin()
    ask = {"model_id": model, "seq_id": seq, "path": "x", "optimizer": True}
    status, said = await client.post(path, ask)
    assert (status, "seq_id" in said["detail"]) == (400, True), said
    assert (await client.state())["calls"] == 0


@pytest.mark.parametrize("digits", [30, 5000])
async def test_a_page_of_many_digits_is_refused(service, digits):
    client = (await service()).client()
    status, said = await client.get("training_runs?limit=" + "0" * 12 + "9" * digits)
    assert (status, "limit: expected 1 to 1000" in said["detail"]) == (400, True)


async def test_a_refusal_says_a_part_only_of_what_was_sent(service):
    client = (await service()).client()
    await client.begin()
    said = await client.answer(await client.backward([sequence_datum()], "x" * 100_000))
    assert len(said["error"]) < WORDS_MAX + 20
    assert said["error"].endswith("(cut here)")


async def test_what_nobody_foresaw_is_told_and_the_next_request_served(
    service, monkeypatch, caplog
):
    running = await service()
    client = running.client()
    await client.begin()
    with monkeypatch.context() as broken:
        broken.setattr(running.desk, "submit", lambda *_: 1 / 0)
        status, said = await client.step(seq=1)
    assert (status, "the service failed: ZeroDivisionError; its log" in said["detail"]) == (
        500,
        True,
    )
    assert "request failed path=/api/v1/optim_step" in caplog.text
    await client.answer(await client.backward([sequence_datum()], seq=1))


@pytest.mark.parametrize("scored", [False, True])
async def test_a_sampler_whose_weights_are_gone_is_told_and_others_go_on(service, tmp_path, scored):
    running = await service()
    client, other = running.client("mine"), running.client("yours")
    for one in (client, other):
        await one.begin(seed=len(one.key) + (one is client))
    sampler, others = await saved_sampler(client), None
    if scored:  # the engine has them, who scores has not
        await client.answer(await client.sample(sampler))
    (file,) = (tmp_path / "weights").iterdir()
    file.unlink()
    await other.answer(await other.backward([sequence_datum()]))
    await other.answer(await other.step())
    others = await saved_sampler(other)
    acks = [await client.sample(sampler, seq=n, prompt_logprobs=scored) for n in (1, 2)]
    for ack in acks:
        said = await client.answer(ack)
        assert said["category"] == "server"
        assert (file.name in said["error"], "restart the service" in said["error"]) == (True, True)
    assert (await other.answer(await other.sample(others))).sequences
    said = await client.answer(await client.sample(sampler, seq=3))  # at once, not after a while
    assert said["category"] == "server"
    await client.answer(await client.backward([sequence_datum()]))


async def test_an_answer_that_cannot_be_written_is_not_made_twice(service, monkeypatch):
    running = await service()
    client = running.client()
    model = await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    before = await client.state()
    with monkeypatch.context() as full:
        full.setattr(running.book, "answer", _disk_is_full)
        said = await client.answer(await client.step())
    assert (said["category"], "disk is full" in said["error"]) == ("server", True)
    assert (await client.state())["chain"] == before["chain"]
    await running.stop()
    running = await service()
    client = running.follow(client)
    stepped = await client.answer((200, {"request_id": f"{model}#2"}))
    assert stepped["metrics"]["num_gathered:sum"] == 1


def _disk_is_full(*_):
    raise LedgerError("the disk is full")


async def test_two_who_wait_for_one_answer_are_both_told_when_it_is_there(service):
    running = await service(computes=False)
    client = running.client()
    model = await client.begin()
    ack = await client.backward([sequence_datum()])
    assert ack[0] == 200
    look = running.desk.wait
    long = [look(model, 1, 600.0) for _ in range(2)]
    waiting = [asyncio.ensure_future(one) for one in long]
    await look(model, 1, 0)  # one who does not wait takes nothing from them
    computing = asyncio.ensure_future(running.desk.compute_forever())
    running.tasks.append(computing)
    found = await asyncio.gather(*waiting)
    assert all(one is not None and one.answer is not None for one in found)
