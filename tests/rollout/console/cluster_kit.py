"""A model of an API server that knows people by their tokens and what each may, and a console of it over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rollout.cluster.client import Cluster
from rollout.cluster.coordinator import RUN_FOLDER
from rollout.console.cluster.serve import build_cluster_app
from rollout.console.views.remote import read_page_as_data
from rollout.errors import RolloutError
from rollout.report.finite import finite

CONSOLE = "token-of-the-console"
OF_OURS = "/apis/rollout.dev/v1alpha1"
Right = tuple[str, str, str]
"""Verb, resource (``pods/exec``), namespace."""


def rights(namespace: str, *said: str) -> set[Right]:
    """``list pods``, in one namespace."""
    pairs = (one.split() for one in said)
    return {(verb, resource, namespace) for verb, resource in pairs}


OURS = ("rolloutruns", "rolloutendpoints", "rolloutsnapshots", "rolloutsweeps")
VIEWS = (
    *(f"{verb} {plural}" for plural in OURS for verb in ("get", "list")),
    *("list pods", "list events"),
)
EDITS = (
    *VIEWS,
    *(f"patch {plural}" for plural in OURS),
    *("create pods/exec", "get pods/exec"),
)
STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
"""Channels of an exec."""


def build_object(name: str, namespace: str = "team", **more: Any) -> dict[str, Any]:
    """A run's object as an API server gives it."""
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {},
        "status": {
            "attempt": 1,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Running",
                    "message": "all is well",
                    "lastTransitionTime": "2026-01-02T03:05:00Z",
                }
            ],
            "progress": {"step": 7, "maxSteps": 40, "rewardMean": "0.25", "bottleneck": "Actors"},
            "actors": {"ready": 2},
            "learner": {"ready": 1},
        },
    } | more


@dataclass(kw_only=True)
class ModelApiServer:
    """Objects by namespace, and people by token. ``calls`` are what it was asked, with whose token.

    ``folder`` is what the coordinator's pod has as its run's folder; ``says`` what its command prints instead, where it is set.
    """

    people: dict[str, set[Right]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    reviews_allowed: bool = True
    folder: Path | None = None
    says: str | None = None

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._who)
        app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._may)
        app.router.add_get(f"{OF_OURS}/{{plural}}", self._list)
        app.router.add_get(f"{OF_OURS}/namespaces/{{namespace}}/{{plural}}", self._list)
        app.router.add_get(f"{OF_OURS}/namespaces/{{namespace}}/{{plural}}/{{name}}", self._get)
        app.router.add_patch(f"{OF_OURS}/namespaces/{{namespace}}/{{plural}}/{{name}}", self._patch)
        app.router.add_get("/api/v1/namespaces/{namespace}/{plural}", self._children)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/exec", self._exec)
        return app

    def number_of(self, word: str) -> int:
        """How many calls had this word in their path."""
        return sum(word in path for _, path, _ in self.calls)

    def _note(self, request: web.Request, *wanted: Right) -> None:
        """Let the console's account read, and anybody else do what they may."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.calls.append((request.method, request.path, token))
        reads = request.method != "PATCH" and not request.path.endswith("/exec")
        if (token == CONSOLE and reads) or (
            wanted and set(wanted) <= self.people.get(token, set())
        ):
            return
        raise web.HTTPForbidden(text=_status(403, f"may not {wanted}"))

    async def _who(self, request: web.Request) -> web.Response:
        self._note(request)
        if not self.reviews_allowed:
            raise web.HTTPForbidden(text=_status(403, "cannot create resource tokenreviews"))
        token = (await request.json())["spec"]["token"]
        if token not in self.people:
            return web.json_response({"status": {"authenticated": False}}, status=201)
        user = {"username": token.removeprefix("token-of-"), "groups": ["system:authenticated"]}
        return web.json_response({"status": {"authenticated": True, "user": user}}, status=201)

    async def _may(self, request: web.Request) -> web.Response:
        self._note(request)
        spec = (await request.json())["spec"]
        asked = spec["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        wanted = (asked["verb"], resource, asked.get("namespace", ""))
        allowed = wanted in self.people[f"token-of-{spec['user']}"]
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        self._note(request)
        wanted = request.match_info.get("namespace")
        found = [
            one for one in self._ours(request) if wanted in (None, one["metadata"]["namespace"])
        ]
        return web.json_response({"items": found, "metadata": {}})

    def _ours(self, request: web.Request) -> list[dict[str, Any]]:
        return getattr(self, request.match_info["plural"].removeprefix("rollout"))

    async def _get(self, request: web.Request) -> web.Response:
        self._note(request, self._right(request, "get"))
        return web.json_response(self._find(request))

    async def _patch(self, request: web.Request) -> web.Response:
        """Merge a spec into an object, as whoever asks."""
        self._note(request, self._right(request, "patch"))
        found = self._find(request)
        found["spec"] = found["spec"] | (await request.json())["spec"]
        return web.json_response(found)

    def _right(self, request: web.Request, verb: str) -> Right:
        return verb, request.match_info["plural"], request.match_info["namespace"]

    def _find(self, request: web.Request) -> dict[str, Any]:
        place = (request.match_info["namespace"], request.match_info["name"])
        for one in self._ours(request):
            if (one["metadata"]["namespace"], one["metadata"]["name"]) == place:
                return one
        said = f'{request.match_info["plural"]} "{place[1]}" not found'
        raise web.HTTPNotFound(text=_status(404, said))

    async def _children(self, request: web.Request) -> web.Response:
        plural = request.match_info["plural"]
        self._note(request, ("list", plural, request.match_info["namespace"]))
        found = getattr(self, plural)
        wanted = dict(
            pair.split("=") for pair in request.query.get("labelSelector", "").split(",") if pair
        )
        if wanted:
            found = [one for one in found if _has(one, wanted)]
        return web.json_response({"items": found})

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """What ``rollout debug page`` prints in the pod."""
        self._note(request, ("get", "pods/exec", request.match_info["namespace"]))
        channel = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await channel.prepare(request)
        code, said = self._run(request.query.getall("command"), request.match_info["pod"])
        await channel.send_bytes((STDERR if code else STDOUT) + said.encode())
        ended = {"status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            ended = {"status": "Failure", "details": {"causes": causes}}
        await channel.send_bytes(STATUS + json.dumps(ended).encode())
        await channel.close()
        return channel

    def _run(self, command: list[str], pod: str = "") -> tuple[int, str]:
        program, debug, page, folder, name, *more = command
        assert (program, debug, page, folder) == ("rollout", "debug", "page", RUN_FOLDER)
        question = more[1] if more else "{}"
        assert self.folder is not None
        own = self.folder.parent / pod.removesuffix("-coordinator-0")
        mine = own if own.is_dir() and pod else self.folder
        if self.says is not None:
            return 0, self.says
        try:
            return 0, json.dumps(finite(read_page_as_data(mine, name, question)))
        except RolloutError as error:
            return error.exit_code, str(error)


def _has(pod: dict[str, Any], wanted: dict[str, str]) -> bool:
    """Whether a pod's labels are these; one that a test gave no label is of every run."""
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(name, value) == value for name, value in wanted.items())


def _status(code: int, message: str) -> str:
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code})


@dataclass(kw_only=True)
class ClusterConsole:
    """A console of a model cluster."""

    url: str
    server: ModelApiServer
    app: web.Application
    client: aiohttp.ClientSession

    async def get(self, path: str, token: str = "", **more: Any) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.client.get(self.url + path, headers=headers, **more) as answer:
            return answer.status, await answer.text()

    async def page(self, path: str, token: str) -> str:
        status, text = await self.get(path, token)
        assert status == 200, text
        return text

    async def press(self, path: str, token: str, origin: str | None = None, **data: str) -> int:
        """What a button sends; the status, not followed."""
        headers = {"Authorization": f"Bearer {token}", "Origin": origin or self.url}
        async with self.client.post(
            self.url + path, data=data, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status

    async def sign_in(self, token: str, origin: str | None = None) -> aiohttp.ClientResponse:
        """What the form sends; the answer is read, and not followed."""
        headers = {"Origin": self.url if origin is None else origin}
        async with self.client.post(
            f"{self.url}/sign-in", data={"token": token}, headers=headers, allow_redirects=False
        ) as answer:
            await answer.read()
            return answer


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[int]:
    """Serve on loopback for a block; the port."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_cluster_console(
    folder: Path, server: ModelApiServer, monkeypatch: Any, namespaces: Iterable[str] = ()
) -> AsyncIterator[ClusterConsole]:
    """A console without TLS, with an account of its own at the model."""
    async with listening(server.build()) as port:
        path = folder / "kubeconfig"
        path.write_text(json.dumps(kubeconfig(port)))
        monkeypatch.setenv("KUBECONFIG", str(path))
        app = build_cluster_app(Cluster(), tuple(namespaces), secure=False)
        async with listening(app) as own:
            jar = aiohttp.CookieJar(unsafe=True)  # of an address, too
            async with aiohttp.ClientSession(cookie_jar=jar) as client:
                yield ClusterConsole(
                    url=f"http://127.0.0.1:{own}", server=server, app=app, client=client
                )


def kubeconfig(port: int, token: str = CONSOLE) -> dict[str, Any]:
    """Of the console's account, or of somebody in namespace `team`."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "console", "namespace": "team"}}
        ],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "console", "user": {"token": token}}],
    }
