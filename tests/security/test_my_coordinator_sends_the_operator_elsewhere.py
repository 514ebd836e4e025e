"""The attacker runs a coordinator, or what answers in its place, and has the operator's calls go where they wish."""

import gzip
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from worlds import World

from rollout_operator.errors import CoordinatorUnreachable
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection, open_outer_session, open_session
from rollout_operator.run import coordinator
from rollout_operator.run.coordinator import ANSWER_BYTES_MAX, HttpCoordinators

TOKEN = "/api/v1/namespaces/rollout-system/serviceaccounts/rollout-operator/token"


class Caller(HttpCoordinators):
    """Without TLS and tokens of the run: what is asked here is where calls go and what comes back."""

    async def _token(self, uid):
        del uid
        return "run-token"

    async def _tls(self, observed):
        del observed
        return True


@asynccontextmanager
async def world(answer, monkeypatch):
    """An API server that notes calls, and a coordinator of the attacker's."""
    seen = []

    async def note(request):
        seen.append((request.path, request.headers.get("Authorization")))
        return web.json_response({})

    async def attack(request):
        return answer(str(api.make_url(TOKEN)), request)

    servers = []
    for handler in (note, attack):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        servers.append(TestServer(app))
    api, evil = servers
    async with api, evil:
        monkeypatch.setattr(coordinator, "coordinator_url", lambda *_: str(evil.make_url("/")))
        yield api, evil, seen


def redirect(status):
    return lambda url, _: web.Response(status=status, headers={"Location": url})


def big(*_):
    return web.Response(body=b" " * (ANSWER_BYTES_MAX + 1))


def bomb(*_):
    body = gzip.compress(b" " * (64 << 20))
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


async def call():
    async with open_outer_session() as session:
        caller = Caller(client=None, session=session, namespace="n", account="a")
        await caller.stop(World().observe(), "Suspended")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_my_redirect_has_the_operator_mint_a_token(status, monkeypatch):
    async with world(redirect(status), monkeypatch) as (_, _, seen):
        with pytest.raises(CoordinatorUnreachable, match=str(status)):
            await call()
        assert seen == []


async def test_my_answer_fills_the_operators_memory(monkeypatch):
    async with world(big, monkeypatch):
        with pytest.raises(CoordinatorUnreachable, match="more than 65536 bytes"):
            await call()


async def test_my_answer_unpacks_in_the_operators_memory(monkeypatch):
    async with (
        world(bomb, monkeypatch) as (_, evil, _),
        open_outer_session() as session,
        session.get(evil.make_url("/")) as response,
    ):
        assert (await response.content.read(2)) == b"\x1f\x8b", "it stays packed"


async def test_the_token_of_the_operator_reaches_me_by_any_session(monkeypatch):
    heard = []

    def note(_, request):
        heard.append(request.headers.get("Authorization"))
        return web.json_response({})

    async with world(note, monkeypatch):
        await call()
    assert heard == ["Bearer run-token"]


async def test_the_api_server_itself_is_not_followed_elsewhere(monkeypatch):
    async with world(redirect(307), monkeypatch) as (api, evil, seen):
        connection = Connection(server=str(evil.make_url("")).rstrip("/"), token="t")
        async with open_session(connection) as session:
            client = KubeClient(session, connection.server)
            with pytest.raises(Exception, match="307"):
                await client.read("/version")
        assert (seen, api.port != evil.port) == ([], True)
