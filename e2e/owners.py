"""A process that owns a cluster, to be killed by a test."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.control.processes import Process
from cluster.instance import Instance, find

SCRIPT = """
import sys
from cluster import local
shape = local.Shape(fake_nodes=0, real_nodes=int(sys.argv[1]))
print(local.up(shape, owned=True).instance.name, flush=True)
input()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A cluster whose owner is dead, as it was in its lifetime: anyone may have swept it up since."""

    instance: Instance
    processes: list[Process]
    network: int | None


def start_and_kill(real_nodes: int) -> Left:
    """Start a cluster in a process of its own and kill that process."""
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(real_nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    with owner:
        instance = find(owner.stdout.readline().strip())
        processes = list(instance.processes().values())
        network = instance.recall().get("network")
        assert all(process.handle() for process in processes)
        owner.send_signal(signal.SIGKILL)
    return Left(instance=instance, processes=processes, network=network)
