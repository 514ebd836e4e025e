"""Composition root: settings -> session -> store, readers and workers -> kopf as informer and shell."""

from __future__ import annotations

import asyncio
import logging
import os

import kopf

from rollout_operator.handlers import register, register_login
from rollout_operator.kube.connection import find_connection
from rollout_operator.process import Process, open_process
from rollout_operator.settings import Settings, parse_settings


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(operate(parse_settings(os.environ)))


async def operate(settings: Settings) -> None:
    """One operator process from start to end."""
    async with open_process(settings, find_connection(os.environ)) as process:
        await process.start()
        try:
            await watch(process)
        finally:
            await process.stop()


async def watch(process: Process) -> None:
    """Let kopf follow our kinds until it is told to stop."""
    registry = kopf.OperatorRegistry()
    register(registry, process.store, process.settings, process.opened.hear)
    connection = process.connection
    register_login(registry, process.session, connection.server, connection.namespace)
    namespaces = process.settings.namespaces
    await kopf.operator(
        registry=registry,
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
        stop_flag=process.failed,
    )


if __name__ == "__main__":
    main()
