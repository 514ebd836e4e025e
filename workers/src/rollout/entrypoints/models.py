"""Places a pod's models: ``python -m rollout.entrypoints.models ROLE --order O``; then ends.

The only process of a learner's or an actor's pod that writes into a model cache of several runs; it runs nobody's
code but ours, and the containers beside it mount the cache read-only. It takes what the coordinator has found and checks
each model against the digest that the coordinator told. What no second try mends is left for the role's own container, which
says it to the coordinator; after anything else the kubelet starts this one again.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from rollout.entrypoints.config import LAST_WORD_VARIABLE, run_process
from rollout.entrypoints.pod import TERMINATION_LOG
from rollout.entrypoints.prepare import ask_config, find_models
from rollout.errors import SpecError
from rollout.plugins.guard import hide_memory
from rollout.pods.orders import read_order
from rollout.pods.placing import write_refusal
from rollout.protocol.messages import Role
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)
TOLD_TO_GO = 128 + signal.SIGTERM


def main() -> None:
    """Place the models of one pod."""
    signal.signal(signal.SIGTERM, _go)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("learner", "actor"))
    parser.add_argument("--order", type=Path, required=True, help="the WorkerOrder file")
    arguments = parser.parse_args()
    hide_memory()
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    place(read_order(arguments.order), arguments.role)


def place(order: WorkerOrder, role: Role) -> None:
    """Bring every model into the cache. Raises CoordinatorError and StoreError, and what a hub is not there for."""
    found = ask_config(order, role)
    try:
        folders = find_models(order, role, found.resolved)
    except SpecError as error:
        log.error("no model kind=%s error=%s", type(error).__name__, error)  # noqa: TRY400 - expected
        write_refusal(order, error)
        return
    write_refusal(order, None)
    log.info("models placed folders=%s", sorted(set(folders.values())))


def _go(number: int, frame: FrameType | None) -> None:
    """The first process of a container has no default for signals; what is half placed is not seen by anybody."""
    del number, frame
    os._exit(TOLD_TO_GO)


if __name__ == "__main__":
    sys.exit(run_process(main))
