"""What kopf would die of, or never hear of: refused tokens, lists that lack objects, watches that end at once."""

import asyncio
import itertools

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from rollout_operator.controller.backoff import Backoff
from rollout_operator.controller.queue import Key
from rollout_operator.errors import NotLeader
from rollout_operator.handlers import apply_settings
from rollout_operator.kube.config import (
    Connection,
    borrow_session,
    open_session,
    wait_for_token,
)
from rollout_operator.kube.listed import ListedObjects
from rollout_operator.kube.opened import OpenedWatches
from rollout_operator.kube.resources import RUNS, own_paths
from rollout_operator.run.index.store import RunStore
from rollout_operator.settings import Settings


def run(name, version):
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {}}


class Pages:
    """A collection of runs, in pages of one."""

    def __init__(self, *names):
        self.names = names

    async def answer(self, request):
        place = int(request.query.get("continue", "0"))
        more = {"continue": str(place + 1)} if place + 1 < len(self.names) else {}
        items = [run(self.names[place], 5)] if self.names else []
        return web.json_response({"metadata": {"resourceVersion": "5", **more}, "items": items})


async def list_all(session, url):
    more = ""
    while True:
        query = {"continue": more} if more else {}
        async with session.get(f"{url}{RUNS.path()}", params=query) as answer:
            more = (await answer.json())["metadata"].get("continue")
        if not more:
            return


async def test_a_list_makes_everything_known_and_forgets_what_it_does_not_show():
    store, pages = RunStore(), Pages("a", "b")
    store.put_object("RolloutRun", run("gone", 1))
    app = web.Application()
    app.router.add_get(RUNS.path(), pages.answer)
    async with TestServer(app) as server, open_session(Connection(server="http://x")) as own:
        url = str(server.make_url("")).rstrip("/")
        session = borrow_session(own, Connection(server=url), ListedObjects(store))
        await list_all(session, url)
    assert {one.key.name for one in store.objects()} == {"a", "b"}


def test_a_list_of_one_namespace_says_nothing_of_another():
    store = RunStore()
    store.put_object("RolloutRun", run("a", 1))
    store.keep_objects("RolloutRun", "other", set(), 9)
    assert store.find(Key(namespace="n", name="a", kind="RolloutRun")) is not None
    store.keep_objects("RolloutRun", "n", set(), 0)
    assert store.find(Key(namespace="n", name="a", kind="RolloutRun")) is not None
    store.keep_objects("RolloutRun", "n", set(), 1)
    assert store.find(Key(namespace="n", name="a", kind="RolloutRun")) is None


async def test_a_refused_token_is_tried_again_and_closes_no_session():
    async def refuse(_):
        return web.Response(status=401)

    app = web.Application()
    app.router.add_get("/x", refuse)
    async with TestServer(app) as server:
        connection = Connection(server=str(server.make_url("")).rstrip("/"))
        async with open_session(connection) as own:
            borrowed = borrow_session(own, connection, wait_for_token)
            with pytest.raises(aiohttp.ClientConnectionError, match="401"):
                await borrowed.get(f"{connection.server}/x")
            await borrowed.close()
            assert not own.closed
            assert (await own.get(f"{connection.server}/x")).status == 401


async def test_the_operators_token_goes_to_the_api_server_and_to_nobody_else():
    seen = []

    async def answer(request):
        seen.append(request.headers.get("Authorization"))
        return web.Response()

    app = web.Application()
    app.router.add_get("/x", answer)
    async with TestServer(app) as server, TestServer(app) as coordinator:
        connection = Connection(server=str(server.make_url("")).rstrip("/"), token="mine")
        async with open_session(connection) as session:
            await session.get(server.make_url("/x"))
            await session.get(coordinator.make_url("/x"), headers={"Authorization": "Bearer its"})
    assert seen == ["Bearer mine", "Bearer its"]


class Opened:
    """An OpenedWatches with a clock of its own, and what it answers to an opening."""

    def __init__(self, *expected):
        self.now = 0.0
        self.watches = OpenedWatches(expected, lambda: self.now, lambda: 0.0)

    async def open(self, path, status=200):
        class Request:
            url = URL(f"http://x{path}?watch=true")

        class Response:
            pass

        async def handler(_):
            answer = Response()
            answer.status = status
            return answer

        await self.watches(Request(), handler)


async def test_a_watch_that_was_never_opened_ages_from_the_beginning():
    one = Opened("/a", "/b")
    one.now = 50.0
    await one.open("/a")
    one.now = 60.0
    assert one.watches.ages() == {"/a": 10.0, "/b": 60.0}
    assert one.watches.waiting() == {"/b"}


async def test_a_watch_that_is_refused_is_not_heard():
    one = Opened("/a")
    one.now = 9.0
    await one.open("/a", status=403)
    assert one.watches.ages() == {"/a": 9.0}
    assert one.watches.waiting() == {"/a"}


def test_a_watch_that_ends_at_once_is_opened_with_growing_pauses():
    one = Opened("/a")
    pauses = [one.watches._pause("/a") for _ in range(7)]
    assert pauses == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0]
    one.now += 8.0
    assert one.watches._pause("/a") == 0.0


def test_kopf_never_gives_up_and_every_call_of_it_is_bounded():
    target = kopf.OperatorSettings()
    apply_settings(target, Settings())
    pauses = list(itertools.islice(iter(target.networking.error_backoffs), 100))
    assert max(pauses) <= 15.0
    assert pauses[0] < 0.3
    assert target.networking.request_timeout == 30.0
    assert target.watching.inactivity_timeout == 70


def test_pauses_begin_anew_each_time():
    pauses = Backoff(seconds_max=15.0)
    assert next(iter(pauses)) <= 0.2
    assert next(iter(pauses)) <= 0.2


def test_every_collection_that_is_watched_has_a_path():
    assert len(list(own_paths(()))) == 6
    assert len(list(own_paths(("a", "b")))) == 10


async def test_a_write_asks_for_the_lease_as_it_leaves_and_a_read_does_not():
    seen, lost = [], asyncio.Event()

    async def answer(request):
        seen.append(request.method)
        return web.Response()

    def may_send():
        if lost.is_set():
            raise NotLeader("frozen meanwhile")

    app = web.Application()
    app.router.add_route("*", "/x", answer)
    async with TestServer(app) as server:
        connection = Connection(server=str(server.make_url("")).rstrip("/"))
        async with open_session(connection, may_send=may_send) as session:
            await session.post(f"{connection.server}/x")
            lost.set()
            with pytest.raises(NotLeader):
                await session.post(f"{connection.server}/x")
            await session.get(f"{connection.server}/x")
    assert seen == ["POST", "GET"]
