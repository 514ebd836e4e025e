"""The pod that holds an endpoint's requests while it has no servers: a gateway without an engine, whose one place is the servers' address.

Requests wait in its bounded queue, each as long as it may, and are sent on as they came when servers answer there. How many wait is what
it says as its saturation, which is what an autoscaler wakes a server by. It knows no model and loads none.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from rollout.common.child_processes import log_tail
from rollout.errors import CoordinatorError, SpecError
from rollout.inference.gateway.keys import KeyFile
from rollout.inference.gateway.state import GatewaySettings
from rollout.inference.gateway.table import (
    EndpointTable,
    EngineReplica,
    ServedVersion,
    write_table,
)
from rollout.pods.serving.keys import MountedKeys
from rollout.pods.serving.log_files import LogFiles
from rollout.serving.gateway_process import GatewayProcess
from rollout_api.serving import HOLD_VARIABLE, HoldOrder

LOOK_SECONDS = 0.2
SLOTS = 4096
"""Requests that are sent on at a time: what the servers cannot take waits in their own queues."""
TELL_SECONDS = 5
"""Before a request's time is up: whoever waited for nothing is told when to come again."""
STDOUT = 1


def read_hold_order() -> HoldOrder:
    """What the operator wrote into our environment. Raises SpecError."""
    try:
        return HoldOrder.model_validate_json(os.environ.get(HOLD_VARIABLE, ""))
    except ValueError as error:
        raise SpecError(f"{HOLD_VARIABLE} holds no order: {error}") from error


def hold(order: HoldOrder, told: threading.Event) -> None:
    """Hold and send on until ``told``, then drain. Raises RolloutError."""
    work = Path(order.work_dir)
    logs = work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    mounted = MountedKeys(Path(order.keys_dir), order.keys, KeyFile(work / "keys"))
    mounted.begin(time.time())
    write_table(work / "table.json", build_table(order, time.time()))
    passed, log = LogFiles(logs, STDOUT), logs / "gateway.log"
    gateway = GatewayProcess(build_settings(order, work), log)
    try:
        while not told.wait(LOOK_SECONDS):
            passed.pass_on()
            mounted.refresh(time.time())
            if gateway.ended:
                raise CoordinatorError(f"the gateway ended: {log_tail(log)}")
    finally:
        gateway.stop()
        passed.pass_on()


def build_table(order: HoldOrder, now: float) -> EndpointTable:
    """One model, of which nothing is known here but its name; answers say the rest."""
    servers = EngineReplica(name="servers", socket=order.servers, slots=SLOTS)
    version = ServedVersion(
        name=order.name, digest="", engine="embedded", replicas=(servers,), created=int(now)
    )
    return EndpointTable(versions=(version,))


def build_settings(order: HoldOrder, work: Path) -> GatewaySettings:
    """Those of a server's gateway, but for how long requests wait."""
    return GatewaySettings(
        host="0.0.0.0",  # noqa: S104 - clients come to the pod's address
        port=order.port,
        table=str(work / "table.json"),
        keys=str(work / "keys"),
        admin="",
        queue_seconds=max(1, order.request_seconds - TELL_SECONDS),
        request_seconds=order.request_seconds,
        drain_seconds=order.drain_seconds,
        leave_seconds=order.leave_seconds,
        is_open=not order.keys,
    )
