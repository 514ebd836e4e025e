"""The coordinator process: ``python -m rollout.entrypoints.coordinator --config W``.

Listens where the configuration says. Holds the only connection to the ledger; killing it at any
instant loses nothing, and its next life goes on from the last acknowledged write.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollout.common.stacks import run_loop
from rollout.coordinator.build import open_from_config
from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.lives import build_lives
from rollout.coordinator.rules.usage import sum_days
from rollout.coordinator.sandboxes.broker import build_broker
from rollout.coordinator.server.callers import AccountCallers, Callers, SecretCallers
from rollout.coordinator.server.server import ServerOptions, serve
from rollout.coordinator.status.kubernetes import build_duties
from rollout.coordinator.status.stalls import build_watch
from rollout.entrypoints.config import begin_as, parse_arguments, run_process
from rollout.errors import CoordinatorError, SpecError
from rollout.plugins.guard import hide_memory
from rollout.protocol.tls import open_certificate
from rollout.runs.model_transfer import build_packer, find_brought
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.runs.snapshots.ordered import open_ordered
from rollout_api.worker import PodShape, WorkerConfig


def main() -> None:
    """Coordinate until SIGTERM."""
    arguments = parse_arguments(__doc__)
    hide_memory()
    run_loop(coordinate(begin_with_snapshot(begin_as("coordinator", arguments.config))))


async def coordinate(config: WorkerConfig) -> None:
    """Open the run and serve it. Raises SpecError, DataError, LedgerError or CoordinatorError."""
    options = build_server_options(config)
    opened = await open_from_config(config, build_packer(config), find_brought(config))
    opened.run.snapshot_taker = open_ordered(config)
    opened.run.usage = sum_days(await opened.run.ledger.lives())
    broker = build_broker(config)
    if broker is not None:
        opened.run.sandboxes = broker
        options = replace(options, duties=(*options.duties, broker.keep))
    await serve(opened, options)


def build_server_options(config: WorkerConfig) -> ServerOptions:
    """Where to listen and whom to let in. Raises SpecError where tokens would travel in the clear."""
    layout = config.layout
    address = urlsplit(layout.coordinator_url)
    if address.hostname is None or address.port is None:
        raise SpecError(f"layout.coordinatorUrl: {layout.coordinator_url} names no port")
    host = layout.listen_host or address.hostname
    return ServerOptions(
        host=host,
        port=address.port,
        callers=build_callers(config),
        certificate=open_certificate(layout, host),
        config=config.model_dump_json(exclude_none=True).encode(),
        duties=(
            *build_duties(config.progress, config.run),
            *_watches(config),
            build_lives(partial(find_place, config)),
        ),
    )


def find_place(config: WorkerConfig, role: str) -> Mapping[str, Any]:
    """What a process of a role stands on, as bills are made of it: this machine, or a pod of its shape."""
    if config.authentication is None:
        return {"machine": platform.node()}
    shape = next((one for name, one in config.shapes.items() if name == role), PodShape())
    return shape.model_dump(mode="json", exclude_none=True)


def _watches(
    config: WorkerConfig,
) -> tuple[Callable[[RunContext], Coroutine[None, None, None]], ...]:
    """Where an operator starts the workers, it must be told who does not move; a supervisor looks itself."""
    if config.authentication is None:
        return ()
    return (build_watch(float(config.spec.limits.no_progress_seconds)),)


def build_callers(config: WorkerConfig) -> Callers:
    """Service accounts in a cluster, holders of the run's secret on one machine."""
    if config.authentication is not None:
        return AccountCallers(config.authentication, config.run.uid)
    return SecretCallers(read_secret(Path(config.layout.token_file)))


def read_secret(path: Path) -> str:
    """The run's secret. Raises CoordinatorError when it is missing or empty."""
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise CoordinatorError(f"cannot read the run's secret file {path}: {error}") from error
    if not secret:
        raise CoordinatorError(f"the run's secret file {path} is empty")
    return secret


if __name__ == "__main__":
    sys.exit(run_process(main))
