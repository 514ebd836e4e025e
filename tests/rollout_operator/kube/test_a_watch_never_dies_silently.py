"""A reader lists, watches, lists again when it must, and knows how long it has heard nothing."""

import asyncio
import json
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollout_operator.controller.clocks import Clocks
from rollout_operator.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Terminating,
    Unavailable,
)
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.resources import SERVICES


def service(name, version):
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
    return {"kind": "Service", "metadata": meta}


def event(kind, live):
    return json.dumps({"type": kind, "object": live}).encode() + b"\n"


class Kept:
    """A sink that remembers names."""

    def __init__(self):
        self.names = set()

    def put(self, _, live):
        self.names.add(live["metadata"]["name"])

    def drop(self, _, live):
        self.names.discard(live["metadata"]["name"])

    def keep_only(self, _, __, uids, version):
        self.names &= uids


class Script:
    """An API server that answers lists and watches in the order given; the last one for ever."""

    def __init__(self, lists, watches):
        self.lists, self.watches, self.calls = list(lists), list(watches), []
        self.times = []

    def pauses(self, kind):
        """Seconds between one call of a kind and the next: at least the pause before it, on a busy machine more."""
        times = [at for call, at in zip(self.calls, self.times, strict=True) if kind in call]
        return [later - at for at, later in pairwise(times)]

    async def answer(self, request):
        self.times.append(asyncio.get_running_loop().time())
        if "watch" not in request.query:
            self.calls.append("list")
            names = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            items = [service(name, 1) for name in names]
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        self.calls.append(f"watch {request.query['resourceVersion']}")
        lines = self.watches.pop(0) if self.watches else None
        response = web.StreamResponse()
        await response.prepare(request)
        if lines is None:
            await asyncio.sleep(600)
            return response
        for line in lines:
            await response.write(line)
        return response


async def follow(script, until, seconds=60.0, **more):
    app = web.Application()
    app.router.add_get("/api/v1/services", script.answer)
    sink = Kept()
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = KubeClient(session, str(server.make_url("")).rstrip("/"))
        reader = Informer(
            client=client, resource=SERVICES, sink=sink, clocks=Clocks(noise=lambda: 0.0), **more
        )
        task = asyncio.create_task(reader.run())
        for _ in range(int(seconds * 100)):
            if until(sink, script):
                break
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return sink, script


async def test_it_goes_on_from_the_last_version_it_has_heard():
    script = Script(
        [["a"]], [[event("ADDED", service("b", 7))], [event("DELETED", service("a", 9))]]
    )
    sink, script = await follow(script, lambda kept, _: kept.names == {"b"})
    assert sink.names == {"b"}
    assert script.calls[:3] == ["list", "watch 1", "watch 7"]


async def test_bookmarks_move_the_version_and_are_no_object():
    script = Script([["a"]], [[event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})]])
    _, script = await follow(script, lambda _, told: "watch 50" in told.calls)
    assert "watch 50" in script.calls


async def test_a_watch_that_is_too_old_lists_again_and_forgets_what_is_gone():
    gone = {"kind": "Status", "code": 410, "message": "too old"}
    script = Script([["a", "b"], ["b", "c"]], [[event("ERROR", gone)]])
    sink, script = await follow(script, lambda kept, _: "c" in kept.names)
    assert sink.names == {"b", "c"}
    assert script.calls.count("list") == 2


async def test_a_watch_that_is_cut_in_the_middle_of_an_event_is_opened_again():
    half = event("ADDED", service("x", 3))[:20]
    script = Script([["a"]], [[event("ADDED", service("b", 2)), half]])
    _, script = await follow(script, lambda _, told: told.calls.count("watch 2") >= 1)
    assert "watch 2" in script.calls


async def test_long_events_are_read_whole():
    big = service("big", 5)
    big["data"] = "x" * 300_000
    script = Script([["a"]], [[event("ADDED", big)]])
    sink, _ = await follow(script, lambda kept, _: "big" in kept.names)
    assert "big" in sink.names


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, "no", Forbidden),
        (403, "namespace x because it is being terminated", Terminating),
        (404, "none", NotFound),
        (409, "changed", Conflict),
        (422, "bad", Refused),
        (429, "slow down", Unavailable),
        (500, "broken", Unavailable),
    ],
)
async def test_each_answer_has_its_name(status, message, kind):
    async def answer(_):
        body = {"kind": "Status", "message": message}
        return web.json_response(body, status=status, headers={"Retry-After": "3"})

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/n/services/a", answer)
    counted = []
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url("")).rstrip("/")
        client = KubeClient(session, url, count=lambda verb, code: counted.append((verb, code)))
        with pytest.raises(kind, match=message) as caught:
            await client.get(SERVICES, "n", "a")
    assert counted == [("get", status)]
    if isinstance(caught.value, Unavailable):
        assert caught.value.retry_after_seconds == 3


async def test_nobody_there_is_unavailable():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unavailable):
            await KubeClient(session, "http://127.0.0.1:9").get(SERVICES, "n", "a")


async def test_a_watch_that_ends_at_once_is_opened_with_growing_pauses():
    script = Script([["a"]], [[] for _ in range(50)])
    _, script = await follow(script, lambda _, told: len(told.pauses("watch")) > 1)
    least = script.pauses("watch")
    assert least[0] > 0.19
    assert least[1] > 0.39


async def test_a_watch_that_is_always_too_old_lists_with_growing_pauses():
    gone = {"kind": "Status", "code": 410, "message": "too old"}
    script = Script([["a"]], [[event("ERROR", gone)] for _ in range(50)])
    _, script = await follow(script, lambda _, told: len(told.pauses("list")) > 1)
    least = script.pauses("list")
    assert least[0] > 0.19
    assert least[1] > 0.39


async def test_a_watch_that_says_nothing_is_dead():
    script = Script([["a"]], [None, [event("ADDED", service("b", 7))]])
    sink, _ = await follow(script, lambda kept, _: "b" in kept.names, silent_seconds=0.2)
    assert "b" in sink.names


async def test_an_answer_that_is_no_json_is_tried_again():
    async def answer(_):
        return web.Response(text="<html>")

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/n/services/a", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = KubeClient(session, str(server.make_url("")).rstrip("/"))
        with pytest.raises(Unavailable, match="not JSON"):
            await client.get(SERVICES, "n", "a")
