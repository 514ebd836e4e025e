"""Runs a coordinator behind its address until it is told to end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from rollout.common.duties import Duty, keep_going, until_one_fails
from rollout.common.stacks import heed_end
from rollout.coordinator.context import RunContext
from rollout.coordinator.dispatcher import Coordinator
from rollout.coordinator.server.app import build_app
from rollout.coordinator.server.callers import Callers
from rollout.errors import CoordinatorError, LedgerSuperseded
from rollout.protocol.tls import Certificate

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""How long calls in flight may take after SIGTERM; every call is safe to repeat elsewhere."""

KEEPALIVE_SECONDS = 600.0
"""Idle connections are kept: workers are few, and a new connection costs a millisecond a step."""

COLLECT_AFTER_OBJECTS = 20_000
"""Trajectories on their way are thousands of objects and no cycles: Python's usual 700 looks at them many times a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where a coordinator is reached, by whom, and over what; ``config`` is what workers are told.

    ``duties`` run beside the service as long as it does.
    """

    host: str
    port: int
    callers: Callers
    certificate: Certificate | None = None
    config: bytes = b"{}"
    duties: Sequence[Callable[[RunContext], Coroutine[None, None, None]]] = ()


async def serve(coordinator: Coordinator, options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT, then close.

    Raises CoordinatorError when the address is taken, LedgerSuperseded when a newer one took over, and what a
    duty raised that failed too often.
    """
    app = build_app(coordinator, options.callers, config=options.config)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=GRACE_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    tls = None if options.certificate is None else options.certificate.context
    try:
        await web.TCPSite(
            runner, options.host, options.port, reuse_address=True, ssl_context=tls
        ).start()
    except OSError as error:
        await coordinator.close()
        raise CoordinatorError(
            f"cannot listen on {options.host}:{options.port}: {error}"
        ) from error
    gc.freeze()  # what is here by now stays, and needs no look
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    log.info("listening host=%s port=%d boot=%s", options.host, options.port, coordinator.boot)
    beside = _start_duties(coordinator.run, options)
    try:
        await _until_told(coordinator.run, (coordinator.keeping, *beside))
    finally:
        for duty in beside:
            duty.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await coordinator.close()
        await runner.cleanup()
    if coordinator.run.superseded.is_set():
        raise LedgerSuperseded("another coordinator of this run has taken the ledger over")


def _start_duties(run: RunContext, options: ServerOptions) -> list[asyncio.Task[None]]:
    duties: list[tuple[str, Duty]] = [
        (getattr(duty, "__name__", "duty"), partial(duty, run)) for duty in options.duties
    ]
    if options.certificate is not None:
        duties.append(("certificate", options.certificate.watch))
    return [asyncio.create_task(keep_going(name, duty)) for name, duty in duties]


async def _until_told(run: RunContext, duties: Sequence[asyncio.Task[None]]) -> None:
    """Until a signal, a newer coordinator, or a duty that failed too often: its error is raised.

    Where it stands is of interest while the run goes on: after its end every coordinator is told to go.
    """
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: run.state.outcome is None)
    failing = asyncio.create_task(until_one_fails(duties))
    waits = [asyncio.create_task(event.wait()) for event in (stop, run.superseded)]
    await asyncio.wait([failing, *waits], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if failing.done():
        failing.result()
    failing.cancel()
