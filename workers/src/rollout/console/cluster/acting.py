"""What a viewer may change from a page: suspend a run or a sweep and let it go on, take an endpoint back and let it follow its spec again.

Done with the viewer's own token, as ``rollout suspend``, ``resume`` and ``endpoint rollback`` do it: the console's account writes nothing.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from rollout.cluster.kinds import ENDPOINT, RUN, SWEEP, Kind, Reference
from rollout.cluster.objects import find_rollback
from rollout.console.asking import reading
from rollout.console.cluster.door import TOKEN, require
from rollout.console.cluster.pages import object_of
from rollout.console.cluster.reviews import changes
from rollout.errors import SpecError

routes = web.RouteTableDef()


@routes.post("/runs/{namespace}/{run}/suspend")
async def suspend(request: web.Request) -> web.Response:
    """Save a run's state and give its pods back."""
    return await change(request, RUN, "run", {"spec": {"suspend": True}})


@routes.post("/runs/{namespace}/{run}/resume")
async def resume(request: web.Request) -> web.Response:
    """Let a suspended run go on, as a new run attempt."""
    return await change(request, RUN, "run", {"spec": {"suspend": False}})


@routes.post("/sweeps/{namespace}/{sweep}/suspend")
async def suspend_sweep(request: web.Request) -> web.Response:
    """Make no more runs of a sweep, and suspend those at work."""
    return await change(request, SWEEP, "sweep", {"spec": {"suspend": True}})


@routes.post("/sweeps/{namespace}/{sweep}/resume")
async def resume_sweep(request: web.Request) -> web.Response:
    """Let a suspended sweep go on, and the runs that were suspended with it."""
    return await change(request, SWEEP, "sweep", {"spec": {"suspend": False}})


@routes.post("/endpoints/{namespace}/{endpoint}/rollback")
async def roll_back(request: web.Request) -> web.Response:
    """Let an endpoint serve an earlier revision, unmeasured and whole."""
    wanted = (await request.post()).get("to", "")
    if not (isinstance(wanted, str) and wanted):
        raise SpecError("to: choose a revision that the endpoint has had")
    cluster, name = await object_of(request, ENDPOINT, "endpoint")
    reference = Reference(kind=ENDPOINT, name=name)
    found = await reading(request, lambda: find_rollback(cluster.get(reference), wanted))
    return await change(request, ENDPOINT, "endpoint", {"spec": {"rollbackTo": found}})


@routes.post("/endpoints/{namespace}/{endpoint}/follow-spec")
async def follow_spec(request: web.Request) -> web.Response:
    """Serve what the rest of the spec says again."""
    return await change(request, ENDPOINT, "endpoint", {"spec": {"rollbackTo": None}})


async def change(
    request: web.Request, kind: Kind, part: str, patch: dict[str, Any]
) -> web.Response:
    """Patch the object as its viewer, and show its page. Raises HTTPForbidden, KubeError."""
    cluster, name = await object_of(request, kind, part)
    await require(request, changes(kind, cluster.namespace, name))
    token, reference = request[TOKEN], Reference(kind=kind, name=name)
    await reading(request, lambda: cluster.as_holder(token).patch(reference, patch))
    raise web.HTTPSeeOther(request.path.rpartition("/")[0])
