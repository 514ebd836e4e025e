"""Liveness, readiness and metrics over plain HTTP, on a port of its own.

Alive: every watch was heard lately (three minutes). Ready: every first list is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from rollout_operator.metrics import Metrics


def build_app(
    *,
    ages: Callable[[], Mapping[str, float]],
    dead_seconds: float,
    missing: Callable[[], list[str]],
    metrics: Metrics,
) -> web.Application:
    """``/healthz``, ``/readyz``, ``/metrics``."""

    async def healthz(_: web.Request) -> web.Response:
        silent = {name: age for name, age in ages().items() if age > dead_seconds}
        lines = [f"watch of {name} silent for {age:.0f} s" for name, age in sorted(silent.items())]
        return web.Response(text="\n".join(lines) or "ok", status=503 if lines else 200)

    async def readyz(_: web.Request) -> web.Response:
        waits = missing()
        text = f"waits for {', '.join(waits)}" if waits else "ok"
        return web.Response(text=text, status=503 if waits else 200)

    async def serve_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", serve_metrics)
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listen on all interfaces of the pod."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - probes come to the pod's address
    return runner
