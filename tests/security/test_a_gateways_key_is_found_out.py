"""A stranger wants a key of the gateway: from its answers, its files, its logs, its metrics, or by guessing."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from gateway_kit import chat, until

CHAT = "/v1/chat/completions"
EMPTY, WRONG = "", "sk-rollout-0000000000000000-" + "A" * 43


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize(
    "header",
    [EMPTY, "Bearer", f"Bearer {WRONG}", f"Basic {WRONG}", "Bearer " + "x" * 7000, "bearer ~"],
)
async def test_nothing_is_answered_without_a_key(gateway, path, header):
    served = await gateway()
    status, refused, _ = await served.post(path, chat("hi"), headers={"Authorization": header})
    assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
    assert not served.engines["a"].seen


async def test_models_are_not_listed_for_strangers(gateway):
    served = await gateway()
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/models", "/v1/models/m", "/v1/models/other"):
            async with session.get(served.url + path) as answer:
                assert answer.status == 401


async def test_a_part_of_a_key_that_is_right_is_told_apart_by_nothing(gateway):
    served = await gateway()
    half = served.key[:-43] + "A" * 43
    answers = [
        await served.post(CHAT, chat("hi"), headers=served.headers(key)) for key in (half, WRONG)
    ]
    assert answers[0][:2] == answers[1][:2]


async def test_a_key_is_in_no_log_no_answer_and_no_metric(gateway, caplog):
    caplog.set_level(logging.DEBUG)
    served = await gateway()
    secret = served.key.split("-", 3)[3]
    texts = []
    for text in ("hi", "die", "status=500"):
        async with aiohttp.ClientSession(headers=served.headers()) as session:
            async with session.post(served.url + CHAT, json=chat(text, stream=True)) as answer:
                texts.append(await answer.text() + str(answer.headers))
            async with session.get(served.url + "/metrics") as answer:
                texts.append(await answer.text())
    texts += [record.getMessage() for record in caplog.records]
    texts += [str(one) for one in served.engines["a"].seen + served.engines["a"].headers]
    assert not [one for one in texts if secret in one]


async def test_a_key_that_is_revoked_is_refused_within_seconds_without_a_restart(gateway):
    served = await gateway()
    served.keys.revoke(served.key.split("-")[2])
    await until(lambda: not served.state.ring.keeps(served.key.split("-")[2]), "the revocation")
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 401


async def test_a_file_of_keys_that_is_broken_lets_in_nobody_new(gateway):
    served = await gateway()
    served.keys.path.write_text("{")
    status, _, _ = await served.post(CHAT, chat("hi"), headers=served.headers(WRONG))
    assert status == 401
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 200
