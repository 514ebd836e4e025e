"""The pages: objects that a viewer may list, one run, one endpoint, one sweep, and a stream that says when one has moved."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from rollout.cluster.kinds import ENDPOINT, RUN, SNAPSHOT, SWEEP, Kind, Reference
from rollout.console import live
from rollout.console.asking import answer, choice_of, page_of, reading, word_of
from rollout.console.cluster.door import REVIEWS, TOKEN, VIEWER, identify, may, require
from rollout.console.cluster.lines import endpoint_line, run_line, snapshot_line, sweep_line
from rollout.console.cluster.listed import ObjectList, cut, permitted
from rollout.console.cluster.reviews import changes, lists, lists_kind, reads_inside, reads_one
from rollout.console.cluster.run_view import read_endpoint, read_run
from rollout.console.cluster.sweep_view import read_sweep
from rollout.console.render import render

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

SHAPES = {RUN: run_line, ENDPOINT: endpoint_line, SNAPSHOT: snapshot_line, SWEEP: sweep_line}
"""The kinds that are listed, and what a list shows of each."""
LISTS: web.AppKey[Mapping[Kind, ObjectList[Any]]] = web.AppKey("lists")
CLUSTER: web.AppKey[Cluster] = web.AppKey("cluster")
NAMESPACES: web.AppKey[tuple[str, ...]] = web.AppKey("namespaces")
"""What the console looks at; empty: everything."""
FOLLOW_SECONDS = 5.0
"""How often the API server is asked whether an object has moved, for each page that is kept live."""
FOLLOWERS_MAX = 64

routes = web.RouteTableDef()


@routes.get("/")
async def show_runs(request: web.Request) -> web.Response:
    """The runs that the viewer may list, a page at a time."""
    return await show_list(request, RUN, "cluster/runs.html")


@routes.get("/endpoints")
async def show_endpoints(request: web.Request) -> web.Response:
    """The endpoints that the viewer may list."""
    return await show_list(request, ENDPOINT, "cluster/endpoints.html")


@routes.get("/snapshots")
async def show_snapshots(request: web.Request) -> web.Response:
    """The snapshots that the viewer may list."""
    return await show_list(request, SNAPSHOT, "cluster/snapshots.html")


@routes.get("/sweeps")
async def show_sweeps(request: web.Request) -> web.Response:
    """The sweeps that the viewer may list."""
    return await show_list(request, SWEEP, "cluster/sweeps.html")


async def show_list(request: web.Request, kind: Kind, template: str) -> web.Response:
    """A page of the objects of a kind, of all namespaces or of one."""
    name, namespace, page = (
        word_of(request, "name"),
        word_of(request, "namespace"),
        page_of(request),
    )
    by_name = choice_of(request, "sort", ("age", "name")) == "name"
    if namespace:
        await require(request, lists_kind(kind, namespace))
    listed, reviews, viewer = request.app[LISTS][kind], request.app[REVIEWS], request[VIEWER]

    def make() -> str:
        known = listed.lines()
        if namespace:
            mine, said = tuple(one for one in known if one.namespace == namespace), ""
        else:
            mine, said = permitted(reviews, viewer, kind, known)
        return render(
            template,
            listing=cut(mine, name=name, page=page, by_name=by_name, said=said),
            wanted=name,
            namespace=namespace,
            by_name=by_name,
            viewer=viewer.name,
        )

    return await answer(request, make)


@routes.get("/runs/{namespace}/{run}")
async def show_run(request: web.Request) -> web.Response:
    """How one run stands."""
    cluster, name = await run_of(request)
    namespace = cluster.namespace
    with_pods = await may(request, lists("pods", namespace))
    with_events = await may(request, lists("events", namespace))
    inside = await may(request, reads_inside(namespace))
    acts = await may(request, changes(RUN, namespace, name))
    viewer = request[VIEWER].name

    def make() -> str:
        now = datetime.now(UTC)
        found = read_run(cluster, name, now, with_pods=with_pods, with_events=with_events)
        return render("cluster/run.html", run=found, inside=inside, acts=acts, viewer=viewer)

    return await answer(request, make)


@routes.get("/endpoints/{namespace}/{endpoint}")
async def show_endpoint(request: web.Request) -> web.Response:
    """How one endpoint stands, and what it has served."""
    cluster, name = await object_of(request, ENDPOINT, "endpoint")
    acts = await may(request, changes(ENDPOINT, cluster.namespace, name))
    viewer = request[VIEWER].name

    def make() -> str:
        found = read_endpoint(cluster, name, datetime.now(UTC))
        return render("cluster/endpoint.html", found=found, acts=acts, viewer=viewer)

    return await answer(request, make)


@routes.get("/sweeps/{namespace}/{sweep}")
async def show_sweep(request: web.Request) -> web.Response:
    """How one sweep stands, with all its runs."""
    cluster, name = await object_of(request, SWEEP, "sweep")
    with_events = await may(request, lists("events", cluster.namespace))
    acts = await may(request, changes(SWEEP, cluster.namespace, name))
    viewer = request[VIEWER].name

    def make() -> str:
        found = read_sweep(cluster, name, with_events=with_events)
        return render("cluster/sweep.html", found=found, acts=acts, viewer=viewer)

    return await answer(request, make)


@routes.get("/runs/{namespace}/{run}/live")
async def follow_run(request: web.Request) -> web.StreamResponse:
    """A line whenever the run has moved."""
    return await follow(request, RUN, "run")


@routes.get("/sweeps/{namespace}/{sweep}/live")
async def follow_sweep(request: web.Request) -> web.StreamResponse:
    """A line whenever the sweep has moved."""
    return await follow(request, SWEEP, "sweep")


async def follow(request: web.Request, kind: Kind, part: str) -> web.StreamResponse:
    """A line whenever the object has changed (server-sent events), as long as the viewer may read it."""
    cluster, name = await object_of(request, kind, part)
    right = reads_one(kind, cluster.namespace, name)

    async def read_mark() -> tuple[int, str] | None:
        if await identify(request, request[TOKEN]) is None or not await may(request, right):
            return None
        found = await reading(request, lambda: cluster.get(Reference(kind=kind, name=name)))
        meta = found["metadata"]
        return meta.get("generation", 0), meta.get("resourceVersion", "")

    return await live.follow(
        request, read_mark, poll_seconds=FOLLOW_SECONDS, followers_max=FOLLOWERS_MAX
    )


async def run_of(request: web.Request) -> tuple[Cluster, str]:
    """The namespace and the name of the run that the address names. Raises as ``object_of``."""
    return await object_of(request, RUN, "run")


async def object_of(request: web.Request, kind: Kind, part: str) -> tuple[Cluster, str]:
    """The namespace and the name of the object that the address names, once the viewer may see it. Raises HTTPForbidden."""
    namespace, name = request.match_info["namespace"], request.match_info[part]
    await require(request, reads_one(kind, namespace, name))
    if request.app[NAMESPACES] and namespace not in request.app[NAMESPACES]:
        raise web.HTTPForbidden(text=f"this console does not look at namespace {namespace}")
    return request.app[CLUSTER].within(namespace), name
