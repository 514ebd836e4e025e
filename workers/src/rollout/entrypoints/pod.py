"""A pod's main process: ``python -m rollout.entrypoints.pod ROLE --order O``.

Pods restart whatever ends, so nothing here ends when its work is done: the work runs in a child, whose
memory and devices are free once it is over, and this process idles until it is told to go (SIGTERM, exit
code 0). A learner's pod asks the coordinator for its place first and reports how its ranks ended; it
never starts them twice, because the group is started anew as a whole, from outside. An actor or a
coordinator that failed ends the container with its exit code, and with what it died of as the container's
termination message.

Signals are heeded before anything heavy is imported: the first process of a container has no default for
them, and one that is lost costs the pod its whole grace.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

ROLES = ("coordinator", "learner", "actor")
TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet makes a container leave its last word, unless the template says otherwise."""


def main() -> int:
    """Be one pod; the exit code."""
    told = heed_signals()
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--order", type=Path, required=True, help="the WorkerOrder file")
    arguments = parser.parse_args()

    from rollout.entrypoints.config import LAST_WORD_VARIABLE, run_process
    from rollout.plugins.guard import hide_memory
    from rollout.pods.work import run_role

    if arguments.role == "coordinator":
        hide_memory()
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    return run_process(lambda: run_role(arguments.role, arguments.order, told))


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
    sys.exit(main())
