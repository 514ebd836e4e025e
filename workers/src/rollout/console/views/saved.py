"""What a run can be gone on from: its anchors, its best version, and the snapshots that were taken of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.console.asking import answer, folder_of
from rollout.console.render import render
from rollout.report.gather import open_ledger, read_best
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import WhereToLook

SNAPSHOTS_MAX = 200

routes = web.RouteTableDef()


def read_saved(folder: Path) -> dict[str, Any]:
    """Anchors, newest first, the best version, snapshots and those that cannot be read. Raises LedgerError, StoreError."""
    with open_ledger(folder) as ledger:
        anchors = ledger.anchors()[::-1]
    catalogue = list_catalogue(WhereToLook(storage_path=str(folder)))
    return {
        "anchors": anchors,
        "best": read_best(folder),
        "snapshots": [one.manifest for one in catalogue.found[:SNAPSHOTS_MAX]],
        "unreadable": catalogue.unreadable[:SNAPSHOTS_MAX],
    }


@routes.get("/runs/{run}/snapshots")
async def show_saved(request: web.Request) -> web.Response:
    """Anchors and snapshots."""
    folder = folder_of(request)
    return await answer(
        request, lambda: render("snapshots.html", run=folder.name, **read_saved(folder))
    )
