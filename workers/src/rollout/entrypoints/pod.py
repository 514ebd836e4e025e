"""A pod's main process: ``python -m rollout.entrypoints.pod ROLE --order O``.

Pods restart whatever ends, so nothing here ends when its work is done: the work runs in a child, whose
memory and devices are free once it is over, and this process idles until it is told to go (SIGTERM, exit
code 0). A learner's pod asks the coordinator for its place first and reports how its ranks ended; it
never starts them twice, because the group is started anew as a whole, from outside. An actor or a
coordinator that failed ends the container with its exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from rollout.entrypoints.child import run_child
from rollout.entrypoints.config import run_process
from rollout.entrypoints.node import find_node, ordinal_of, work_in_group
from rollout.entrypoints.orders import config_path, read_order
from rollout.local.plan import RUN_DIR_VARIABLE, thread_env
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)

ROLES = ("coordinator", "learner", "actor")


def main() -> None:
    """Be one pod. Ends by SystemExit where the exit code says something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--order", type=Path, required=True, help="the WorkerOrder file")
    arguments = parser.parse_args()
    told = heed_signals()
    order = read_order(arguments.order)
    environment = child_environment(order)
    prepare = (arguments.role, "--order", str(arguments.order))
    code = run_child("rollout.entrypoints.prepare", prepare, environment, told)
    if told.is_set():
        return
    if code:
        raise SystemExit(code)
    work(arguments.role, order, environment, told)


def work(
    role: str, order: WorkerOrder, environment: Mapping[str, str], told: threading.Event
) -> None:
    """Do the role's work, then idle."""
    if role == "learner":
        work_in_group(order, find_node(os.environ), environment, told)
    else:
        index = ("--index", str(ordinal_of(os.environ))) if role == "actor" else ()
        arguments = ("--config", str(config_path(order)), *index)
        code = run_child(f"rollout.entrypoints.{role}", arguments, environment, told)
        if code and not told.is_set():
            raise SystemExit(code)
    log.info("done: waiting to be told to go")
    told.wait()


def child_environment(order: WorkerOrder) -> dict[str, str]:
    """Ours, with what the run's spec and order ask for."""
    own = {variable.name: variable.value for variable in order.spec.env}
    place = {RUN_DIR_VARIABLE: order.layout.run_dir}
    return {**os.environ, **own, **thread_env(order.threads), **place}


def heed_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        del number, frame
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    return told


if __name__ == "__main__":
    sys.exit(run_process(main))
