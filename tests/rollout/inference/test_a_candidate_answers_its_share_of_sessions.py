"""A gateway sends a share of the sessions on to a candidate's servers: each stays on one side, and none is lost with the candidate."""

import asyncio
import json

import aiohttp
import pytest
from gateway_kit import gateways, until

from rollout.errors import SpecError
from rollout.inference.gateway.rules.canary import CanaryOrder, read_canary

CHAT = "/v1/chat/completions"


@pytest.fixture
async def both(tmp_path):
    """What serves, the candidate, and a way to tell the first one of it; with the same keys."""
    async with gateways() as start:
        shared = {"keys": str(tmp_path / "keys"), "canary": str(tmp_path / "canary.json")}
        serving = await start(m=("a",), settings=shared)
        candidate = await start(m=("b",), settings={"keys": shared["keys"]})

        async def tell(percent, url=candidate.url):
            order = {"url": url, "percent": percent, "salt": "m-2"}
            fresh = tmp_path / "fresh"
            fresh.write_text(json.dumps(order))
            fresh.rename(tmp_path / "canary.json")
            await serving.state.refresh()

        yield serving, candidate, tell


def ask(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def counts(served):
    [engine] = served.engines.values()
    return len(engine.seen)


async def test_sessions_are_drawn_by_their_share_and_stay_on_their_side():
    order = CanaryOrder(url="http://c:1", percent=10, salt="one")
    sides = {n: order.takes(str(n).encode()) for n in range(20_000)}
    assert 1800 < sum(sides.values()) < 2200
    assert all(order.takes(str(n).encode()) == side for n, side in sides.items())
    other = CanaryOrder(url="http://c:1", percent=10, salt="two")
    both = sum(other.takes(str(n).encode()) and side for n, side in sides.items())
    assert both < 400, "another candidate has other sessions"
    more = CanaryOrder(url="http://c:1", percent=50, salt="one")
    assert all(more.takes(str(n).encode()) for n, side in sides.items() if side)


async def test_a_conversation_stays_where_it_began_and_users_are_told_apart(both):
    serving, candidate, tell = both
    await tell(50)
    for user in range(30):
        said = [{"role": "user", "content": f"I am {user}"}]
        before = counts(candidate)
        for turn in range(3):
            status, _, _ = await serving.post(CHAT, {"model": "m", "messages": said})
            assert status == 200
            said = [
                *said,
                {"role": "assistant", "content": "a"},
                {"role": "user", "content": str(turn)},
            ]
        assert counts(candidate) - before in (0, 3)
    assert 0 < counts(candidate) < 90
    assert counts(serving) + counts(candidate) == 90


@pytest.mark.parametrize("named", ["user", "header"])
async def test_a_named_session_is_one_whatever_it_says(both, named):
    serving, candidate, tell = both
    await tell(50)
    for session in range(40):
        before = counts(candidate)
        for turn in range(2):
            body = ask(f"{session} {turn}", **({"user": f"u{session}"} if named == "user" else {}))
            headers = {**serving.headers(), "X-Session-Id": f"s{session}"}
            status, _, _ = await serving.post(
                CHAT, body, headers=headers if named == "header" else None
            )
            assert status == 200
        assert counts(candidate) - before in (0, 2)
    assert 0 < counts(candidate) < 80


async def test_answers_and_streams_come_through_with_the_candidates_own_words(both):
    serving, candidate, tell = both
    await tell(100)
    status, body, headers = await serving.post(CHAT, ask("q"))
    assert (status, body["object"]) == (200, "chat.completion")
    assert headers["X-Rollout-Model-Version"] == "m"
    stream = await serving.stream(ask("q"))
    assert stream.rstrip().endswith(b"data: [DONE]")
    assert (counts(serving), counts(candidate)) == (0, 2)
    assert (
        b'rollout_gateway_canary_requests_total{outcome="answered"} 2.0'
        in serving.state.metrics.render()
    )


async def test_a_candidate_that_is_gone_costs_nobody_an_answer(both):
    serving, candidate, tell = both
    await tell(100)
    await candidate.end()
    for n in range(3):
        status, _, _ = await serving.post(CHAT, ask(str(n)))
        assert status == 200
    assert counts(serving) == 3
    assert (
        b'rollout_gateway_canary_requests_total{outcome="fell_back"} 3.0'
        in serving.state.metrics.render()
    )


async def test_a_candidate_that_fails_costs_nobody_an_answer(both):
    serving, candidate, tell = both
    await tell(100)
    candidate.state.draining = True
    status, _, _ = await serving.post(CHAT, ask("q"))
    assert (status, counts(serving)) == (200, 1)


async def test_who_has_no_key_is_refused_here_and_reaches_no_candidate(both):
    serving, candidate, tell = both
    await tell(100)
    status, _, _ = await serving.post(CHAT, ask("q"), headers={"Authorization": "Bearer sk-no"})
    assert (status, counts(candidate)) == (401, 0)


async def test_what_was_sent_on_is_not_sent_on_again(both):
    serving, _, tell = both
    await tell(100, url=serving.url)
    status, _, _ = await serving.post(CHAT, ask("q"))
    assert (status, counts(serving)) == (200, 1)


async def test_no_share_sends_nothing_on(both):
    serving, candidate, tell = both
    await tell(100)
    await tell(0)
    await serving.post(CHAT, ask("q"))
    assert (counts(serving), counts(candidate)) == (1, 0)


async def test_a_client_that_leaves_ends_its_request_at_the_candidate(both):
    serving, candidate, tell = both
    await tell(100)
    [engine] = candidate.engines.values()
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(
            session.post(serving.url + CHAT, json=ask("hang=1"), headers=serving.headers())
        )
        await until(lambda: engine.open == 1)
        request.cancel()
        await until(lambda: engine.freed == 1)
    await until(lambda: len(serving.state.live) == len(candidate.state.live) == 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no order of a canary"),
        ('{"url": "https://c", "percent": 5}', "expected http://host:port"),
        ('{"url": "http://c/x", "percent": 5}', "expected http://host:port"),
        ('{"url": "http://c:1", "percent": 101}', "expected 0 to 100"),
        ('{"url": "http://c:1", "percent": -1}', "expected 0 to 100"),
    ],
)
def test_an_order_that_is_none_is_named(tmp_path, text, said):
    path = tmp_path / "canary.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_canary(path)
