"""Composition root: settings -> session -> store, readers and workers -> kopf as informer and shell."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import time

import kopf

from rollout_api.logs import start_logging
from rollout_operator.build import open_manager
from rollout_operator.controller.backoff import pause_seconds
from rollout_operator.handlers import register, register_login
from rollout_operator.kube.config import borrow_session, find_connection, wait_for_token
from rollout_operator.kube.listed import ListedObjects
from rollout_operator.manager import Manager
from rollout_operator.settings import Settings, parse_settings

log = logging.getLogger(__name__)

KOPF_PAUSE_SECONDS_MAX = 15.0
COLLECT = (20_000, 20, 50)
"""What the process knows lives long and in no cycles: looking for garbage in it is seldom worth while."""
CALM_SECONDS = 60.0
"""A kopf that lived for so long has not failed again and again."""


class _EveryTask(frozenset["asyncio.Task[None]"]):
    """All tasks: kopf ends those that it started, and takes no other one for its own."""

    def __contains__(self, _: object) -> bool:
        return True


def main() -> None:
    """Run until SIGTERM."""
    start_logging(os.environ)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    gc.freeze()
    gc.set_threshold(*COLLECT)
    asyncio.run(operate(parse_settings(os.environ)))


async def operate(settings: Settings) -> None:
    """One operator process from start to end."""
    async with open_manager(settings, find_connection(os.environ)) as process:
        await process.start()
        try:
            await watch(process)
        finally:
            await process.stop()


async def watch(process: Manager) -> None:
    """Let kopf follow our kinds until the process is to end; a kopf that breaks is started again."""
    num_failures = 0
    while not process.ending.is_set():
        began = time.monotonic()
        try:
            await _watch_once(process)
        except Exception:
            log.exception("kopf has ended; it is started again")
        num_failures = 0 if time.monotonic() - began > CALM_SECONDS else num_failures + 1
        pause = pause_seconds(num_failures, KOPF_PAUSE_SECONDS_MAX, random.random())
        await _wait(process.ending, pause)


async def _watch_once(process: Manager) -> None:
    registry = kopf.OperatorRegistry()
    register(registry, process.store, process.settings, process.opened.hear)
    connection = process.connection
    listed = ListedObjects(process.store)
    register_login(
        registry,
        lambda: borrow_session(process.session, connection, wait_for_token, listed, process.opened),
        connection.server,
        connection.namespace,
    )
    namespaces = process.settings.namespaces
    tasks = await kopf.spawn_tasks(
        registry=registry,
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
        stop_flag=process.ending,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _end, process, number)
    await kopf.run_tasks(tasks, ignored=_EveryTask())


def _end(process: Manager, number: signal.Signals) -> None:
    log.info("told to end signal=%s", number.name)
    process.ending.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


if __name__ == "__main__":
    main()
