"""Imported by every fork server of a test: what it forks meets the spells that ``python -m`` meets in ``sitecustomize``.

What such a process starts in its turn is forked from a server of its own: a run's coordinator and its look at the model,
a pod's containers, an engine that is served, the points of a sweep.
"""

import os
from collections.abc import Sequence

import sitecustomize
from forks import Forks

from rollout.common import child_processes, parent_death
from rollout.supervisor import fork_server

live = parent_death.main


def main(argv: Sequence[str]) -> None:
    """Meet them first."""
    sitecustomize.cast(list(argv))
    if fork_server.INHERITED and os.environ.get(fork_server.SWITCH_VARIABLE) != "0":
        child_processes.subprocess = Forks(fork_server.INHERITED.pop(), os.environ)
    live(argv)


parent_death.main = main
