"""A training service in a pod: ``python -m rollout.entrypoints.serving.training --order O``, in the coordinator's place."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from rollout.common.duties import Duty
from rollout.coordinator.server.callers import AccountCallers
from rollout.coordinator.status.kubernetes import ApiWriter
from rollout.entrypoints.config import run_process
from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile
from rollout.plugins.guard import hide_memory
from rollout.pods.orders import read_order
from rollout.pods.serving.keys import MountedKeys
from rollout.pods.serving.training import OperatorDoor, refresh_keys, tell_progress
from rollout.protocol.tls import open_certificate
from rollout.service.desk import TrainingDesk
from rollout.service.registry import ServiceModel
from rollout.service.server import serve_training
from rollout.service.settings import TrainingServiceSettings, settings_of_spec
from rollout.serving.saved_weights import export_for_client
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)

BOOK_FOLDER, KEYS_FOLDER = "service", "client-keys"
"""Below the run's folder, which is its volume."""


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", type=Path, required=True, help="the WorkerOrder file")
    order = read_order(parser.parse_args().order)
    hide_memory()
    settings = build_settings(order)
    mounted = open_keys(order, settings)
    asyncio.run(
        serve_training(
            settings,
            _say,
            lambda desk: build_duties(order, mounted, desk),
            write_saved=export_for_client,
        )
    )


def build_settings(order: WorkerOrder) -> TrainingServiceSettings:
    """The service of an order, where clients come to the pod's address. Raises SpecError."""
    layout = order.layout
    if layout.service_port is None:
        raise SpecError("layout.servicePort is not set: the order is not of a service")
    folder = Path(layout.run_dir)
    made = settings_of_spec(order.spec, folder / BOOK_FOLDER, folder / KEYS_FOLDER, order.threads)
    return replace(made, host=layout.listen_host or "127.0.0.1", port=layout.service_port)


def open_keys(order: WorkerOrder, settings: TrainingServiceSettings) -> MountedKeys:
    """The clients' keys, taken. Raises SpecError for one that is missing or no key."""
    folder = order.layout.api_keys_dir
    if folder is None or order.spec.serve is None or not order.spec.serve.api_keys:
        raise SpecError("spec.serve.apiKeys: name at least one, or no client could be let in")
    names = [one.name for one in order.spec.serve.api_keys]
    mounted = MountedKeys(Path(folder), names, KeyFile(settings.keys))
    mounted.begin(time.time())
    return mounted


def build_duties(
    order: WorkerOrder, mounted: MountedKeys, desk: TrainingDesk
) -> Mapping[str, Duty]:
    """What is done beside the service, once its book has been replayed. Raises SpecError."""
    layout = order.layout
    address = urlsplit(layout.coordinator_url)
    host = layout.listen_host or address.hostname or "127.0.0.1"
    if order.authentication is None or order.progress is None or address.port is None:
        raise SpecError("the order of a service names authentication, progress and a port")
    certificate = open_certificate(layout, host)
    door = OperatorDoor(
        host=host,
        port=address.port,
        callers=AccountCallers(order.authentication, order.run.uid),
        certificate=certificate,
    )
    writer = ApiWriter(order.progress, order.run)
    duties: dict[str, Duty] = {
        "door": door.serve,
        "progress": lambda: tell_progress(writer, order, lambda: count(desk)),
        "keys": refresh_keys(mounted),
    }
    if certificate is not None:
        duties["certificate"] = certificate.watch
    return duties


def count(desk: TrainingDesk) -> tuple[int, int]:
    """Models, and their answered calls."""
    models = desk.registry.all(ServiceModel)
    return len(models), sum(desk.line(one.id).done for one in models)


def _say(url: str, models: tuple[str, ...]) -> None:
    log.info("serving url=%s models=%s", url, ",".join(models))


if __name__ == "__main__":
    sys.exit(run_process(main))
