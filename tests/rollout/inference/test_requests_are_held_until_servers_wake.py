"""Requests of servers that are not there wait in the holder's queue: sent on as they came when servers answer, or told when to come again."""

import asyncio
import contextlib
import random
import socket
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from gateway_kit import chat, gateways, until

from rollout.inference.gateway.table import write_table
from rollout.pods.serving.holder import build_settings, build_table
from rollout_api.serving import HoldOrder

CHAT = "/v1/chat/completions"


class Address:
    """As a Service: connections go to the servers, and nobody takes any while there are none. A second socket keeps the port."""

    def __init__(self):
        self._servers, self._listening, self._passed = None, None, set()
        self._keeper = _bind(0)
        self.port = self._keeper.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.servers = None
        self._keeper.close()
        for one in self._passed:
            one.cancel()
        await asyncio.gather(*self._passed, return_exceptions=True)

    @property
    def servers(self):
        return self._servers

    @servers.setter
    def servers(self, url):
        loop, before = asyncio.get_running_loop(), self._servers
        if url and not before:
            self._listening = _bind(self.port)
            self._listening.listen(128)
            loop.add_reader(self._listening, self._take)
        if before and not url:
            self._take()
            loop.remove_reader(self._listening)
            self._listening.close()
        self._servers = url

    def _take(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                taken, _ = self._listening.accept()
                taken.setblocking(False)
                passed = asyncio.create_task(_pass(taken, urlsplit(self._servers)))
                self._passed.add(passed)
                passed.add_done_callback(self._passed.discard)


def _bind(port):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.setblocking(False)
    return made


async def _pass(taken, there):
    reader, writer = await asyncio.open_connection(sock=taken)
    far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
    await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def held(tmp_path):
    """A holder, its servers, which sleep, and what wakes them; ``hold(**settings)`` starts it."""
    async with gateways() as start, Address() as address:
        keys = {"keys": str(tmp_path / "keys")}
        servers = await start(m=("a",), settings=keys)

        async def hold(**settings):
            holder = await start(m=("b",), settings={**keys, **settings})
            write_table(holder.table, build_table(order(address.url), 1.0))
            await until(lambda: holder.state.pools[0].away, "the holder's own table")
            return holder

        yield hold, servers, address


def order(url, **changes):
    said = {"name": "m", "servers": url, "keysDir": "/keys", "workDir": "/work", "port": 8000}
    seconds = {"requestSeconds": 60, "drainSeconds": 30, "leaveSeconds": 10}
    return HoldOrder.model_validate({**said, **seconds, **changes})


def waiting(holder):
    return holder.state.pools[0].open_requests


def saturation(holder):
    page = holder.state.metrics.render().decode().splitlines()
    [line] = [
        one for one in page if one.startswith('rollout_endpoint_saturation_ratio{version="m"}')
    ]
    return float(line.split()[-1])


async def test_who_asks_sleeping_servers_waits_is_told_to_an_autoscaler_and_is_answered(held):
    hold, servers, address = held
    holder = await hold()
    asked = [asyncio.create_task(holder.post(CHAT, chat(f"n{n}"))) for n in range(5)]
    stream = asyncio.create_task(holder.stream(chat("tokens=3")))
    await until(lambda: waiting(holder) == 6, "six that wait")
    await until(lambda: saturation(holder) == 6, "a metric that says so")
    address.servers = servers.url
    for status, _, headers in await asyncio.gather(*asked):
        assert status == 200
        assert headers["X-Rollout-Weights-Digest"] == "blake3:m", "the servers' own words"
    assert (await stream).rstrip().endswith(b"data: [DONE]")
    await until(lambda: saturation(holder) == 0, "nothing that waits")


async def test_what_is_refused_anyway_wakes_nobody(held):
    hold, _, _ = held
    holder = await hold()
    stranger = {"Authorization": "Bearer sk-rollout-0000000000000000-" + "x" * 43}
    assert (await holder.post(CHAT, chat("hi"), headers=stranger))[0] == 401
    assert (await holder.post(CHAT, chat("hi", model="other")))[0] == 404
    assert (await holder.post(CHAT, b"{"))[0] == 400
    assert waiting(holder) == 0


async def test_a_wait_is_bounded_in_number_and_time_and_says_when_to_come_again(held):
    hold, _, _ = held
    holder = await hold(queue_requests_max=2, queue_seconds=2.0)
    asked = [asyncio.create_task(holder.post(CHAT, chat(f"n{n}"))) for n in range(4)]
    for status, _, headers in await asyncio.gather(*asked):
        assert status == 503
        assert 1 <= int(headers["Retry-After"]) <= 60
    assert waiting(holder) == 0


async def test_who_leaves_waits_no_more(held):
    hold, _, _ = held
    holder = await hold()
    asked = asyncio.create_task(holder.post(CHAT, chat("hi")))
    await until(lambda: waiting(holder) == 1, "one that waits")
    asked.cancel()
    await until(lambda: waiting(holder) == 0, "nobody that waits")


async def test_what_the_servers_refuse_is_passed_on_as_it_is(held):
    hold, servers, address = held
    address.servers = servers.url
    holder = await hold()
    direct = await servers.post(CHAT, chat("status=500"))
    through = await holder.post(CHAT, chat("status=500"))
    assert direct[0] == through[0] >= 500
    assert direct[1] == through[1]


@contextlib.asynccontextmanager
async def scripted(*heads):
    """Servers of the test's own: each request gets the next of ``heads``, a status and what it says, and is cut off; those asked."""
    asked = []

    async def answer(request):
        await request.read()
        status, said = heads[min(len(asked), len(heads) - 1)]
        asked.append(request.headers)
        response = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream"})
        if status:
            await response.prepare(request)
            if said:
                await response.write(said)
        request.transport.abort()
        return response

    async def ready(_):
        return web.Response()

    app = web.Application()
    app.add_routes([web.post(CHAT, answer), web.get("/readyz", ready)])
    runner = web.AppRunner(app)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        await runner.cleanup()


async def test_a_request_that_brings_servers_down_is_given_to_two_of_them_at_most(held):
    hold, _, address = held
    holder = await hold()
    async with scripted((0, b"")) as (url, asked):
        address.servers = url
        status, body, headers = await holder.post(CHAT, chat("hi"))
        address.servers = None
    assert (status, len(asked)) == (503, 2)
    assert "have failed" in body["error"]["message"] and "Retry-After" in headers


async def test_a_stream_that_breaks_off_says_so_and_is_not_begun_again(held):
    hold, _, address = held
    holder = await hold()
    async with scripted((200, b"data: {}\n\n")) as (url, asked):
        address.servers = url
        said = await holder.stream(chat("hi"))
        address.servers = None
    assert len(asked) == 1
    assert said.startswith(b"data: {}\n\n") and b"engine_lost" in said


async def test_a_stream_that_was_begun_and_said_nothing_goes_on_with_other_servers(held):
    hold, servers, address = held
    holder = await hold()
    async with scripted((200, b"")) as (url, asked):
        address.servers = url
        stream = asyncio.create_task(holder.stream(chat("tokens=3")))
        await until(lambda: asked, "a first attempt")
        address.servers = servers.url
        said = await stream
    assert said.count(b"[DONE]") == 1 and b"error" not in said


async def test_servers_that_refuse_what_others_have_begun_end_the_stream_with_their_word(held):
    hold, _, address = held
    holder = await hold()
    async with scripted((200, b""), (400, b"")) as (url, asked):
        address.servers = url
        said = await holder.stream(chat("hi"))
        address.servers = None
    assert len(asked) == 2 and said.count(b"HTTP/1.1") == 0
    assert b"error" in said and said.rstrip().endswith(b"[DONE]")


async def test_clients_that_leave_in_mid_stream_take_no_servers_away(held):
    hold, servers, address = held
    address.servers = servers.url
    holder = await hold()
    leaving = asyncio.create_task(holder.stream(chat("tokens=500 delay=0.01")))
    await until(lambda: servers.engines["a"].open == 1, "a stream")
    leaving.cancel()
    await until(lambda: servers.engines["a"].freed == 1, "an engine that is free again")
    await until(lambda: waiting(holder) == 0, "nobody that waits")
    assert (await holder.post(CHAT, chat("hi")))[0] == 200
    assert "rollout_gateway_retries_total 0.0" in holder.state.metrics.render().decode()


async def test_the_clients_own_key_and_session_are_sent_on_and_nothing_of_the_connection(held):
    hold, _, address = held
    holder = await hold()
    async with scripted((200, b"data: {}\n\n")) as (url, asked):
        address.servers = url
        ours = {**holder.headers(), "X-Session-Id": "s", "X-Forwarded-For": "1.2.3.4"}
        async with aiohttp.ClientSession(headers=ours) as session:
            await (await session.post(holder.url + CHAT, json=chat("hi", stream=True))).read()
        address.servers = None
    [told] = asked
    assert told["Authorization"] == ours["Authorization"] and told["X-Session-Id"] == "s"
    assert told["Connection"] == "close" and "X-Forwarded-For" not in told


@pytest.mark.parametrize("seed", range(3))
async def test_servers_that_come_and_go_lose_nothing(held, seed):
    hold, servers, address = held
    draw, holder = random.Random(seed), await hold()
    asked = []
    for n in range(24):
        address.servers = draw.choice([None, servers.url])
        body = chat(f"n{n}")
        one = holder.stream(body) if draw.random() < 0.5 else holder.post(CHAT, body)
        asked.append(asyncio.create_task(one))
        for _ in range(draw.randint(0, 30)):
            await asyncio.sleep(0)
    address.servers = servers.url
    for one in await asyncio.gather(*asked):
        assert one[0] == 200 if isinstance(one, tuple) else one.rstrip().endswith(b"[DONE]")
    assert waiting(holder) == 0


def test_a_holder_waits_nearly_as_long_as_a_request_may_take(tmp_path):
    settings = build_settings(order("http://chat-awake.ns.svc:80", keys=["ann"]), tmp_path)
    assert settings.queue_seconds == 55 and settings.request_seconds == 60
    assert not settings.is_open
    assert build_settings(order("http://chat-awake.ns.svc:80"), tmp_path).is_open
