"""The attacker is a pod that reaches the webhook's port: large, deep and many bodies. The API server is served all the same."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from test_the_webhook_serves_through_a_renewal import NAME, Files, allow, review_of, serving

from rollout_api.generate.values import WebhookValues
from rollout_operator.webhook.crowd import (
    BYTES_MAX,
    NESTING_MAX,
    NODES_MAX,
    REVIEW_BYTES_MAX,
    Crowd,
    parse_review,
)

ATTACKER, API_SERVER = "127.0.0.2", "127.0.0.1"


@asynccontextmanager
async def flooded(tmp_path, answer=allow):
    """A server with its address, and sessions that come from given addresses of loopback."""
    files = Files(tmp_path)
    files.renew()
    async with serving(files, answer) as (server, _, first):
        await asyncio.wait_for(first, 30)
        host, port = server.address
        sessions = []

        def session(peer):
            connector = aiohttp.TCPConnector(
                ssl=files.context(), force_close=True, limit=0, local_addr=(peer, 0)
            )
            sessions.append(aiohttp.ClientSession(f"https://{host}:{port}", connector=connector))
            return sessions[-1]

        try:
            yield session
        finally:
            for one in sessions:
                await one.close()


async def post(session, body, **headers):
    try:
        async with session.post(
            "/validate", data=body, headers=headers, server_hostname=NAME
        ) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return None  # closed while the body was still being sent


HONEST = json.dumps(review_of()).encode()


async def test_a_body_beyond_the_bound_is_refused_unread_and_the_next_call_is_served(tmp_path):
    async with flooded(tmp_path) as session:
        attacker = session(ATTACKER)
        assert await post(attacker, b" " * (REVIEW_BYTES_MAX + 1)) in {413, None}
        assert await post(attacker, HONEST) == 200


async def test_a_body_of_undeclared_length_is_refused(tmp_path):
    async def stream():
        yield HONEST

    async with flooded(tmp_path) as session:
        assert await post(session(ATTACKER), stream()) in {411, None}
        assert await post(session(API_SERVER), HONEST) == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"request":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"request":{"a":' + b'{"a":' * 80 + b"1" + b"}" * 80 + b"}}",
        b'{"request":{"a":[' + b"{}," * NODES_MAX + b"{}]}}",
        b"[]",
        b'{"request":1}',
        b"\xff\xfe",
        b'{"request":',
        b"",
    ],
    ids=["deep list", "deep object", "many", "list", "number", "no text", "half", "nothing"],
)
async def test_hostile_bodies_are_refused_and_the_next_call_is_served(tmp_path, body):
    async with flooded(tmp_path) as session:
        assert await post(session(ATTACKER), body) == 400
        assert await post(session(API_SERVER), HONEST) == 200


async def test_a_flood_is_answered_429_and_another_address_is_served(tmp_path):
    held = asyncio.Event()

    async def slow(body, **_):
        if body["request"]["uid"] == "flood":
            await held.wait()
        return await allow(body)

    async with flooded(tmp_path, slow) as session:
        flood = {"request": {**review_of()["request"], "uid": "flood"}}
        body = json.dumps(flood).encode().ljust(REVIEW_BYTES_MAX)
        attacker = session(ATTACKER)
        calls = [asyncio.ensure_future(post(attacker, body)) for _ in range(10)]
        crowded = []
        while not crowded:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            crowded = [one for one in done if one.result() == 429]
        honest = asyncio.ensure_future(post(session(API_SERVER), HONEST))
        held.set()
        assert await asyncio.wait_for(honest, 30) == 200
        assert {await one for one in calls} <= {200, 429}
        assert await post(attacker, HONEST) == 200


def test_one_address_never_has_more_than_half_of_what_there_is():
    crowd = Crowd(reviews_max=4, bytes_max=100)
    with crowd.inside("a", 10), crowd.inside("a", 10):
        assert not crowd.has_room("a", 0)
        assert crowd.has_room("b", 50)
        assert not crowd.has_room("b", 51)
        with crowd.inside("b", 0), crowd.inside("c", 0):
            assert not crowd.has_room("d", 0)
    assert crowd.has_room("a", 50)
    assert not crowd.has_room("a", 51)


def test_what_is_taken_on_at_once_fits_into_the_memory_that_the_chart_allows():
    limit = WebhookValues().resources.limits["memory"]
    assert limit == "192Mi"
    bytes_of_a_parsed_value = 100
    assert BYTES_MAX + 2 * NODES_MAX * bytes_of_a_parsed_value + (80 << 20) < 192 << 20


def test_a_review_as_deep_as_may_be_is_parsed():
    inner = 1
    for _ in range(NESTING_MAX - 2):
        inner = {"a": inner}
    assert parse_review(json.dumps({"request": {"a": inner}}).encode())["request"]
