"""How the ranks of a learner are started: one bare process, or torchrun for several. Pure.

The same on one machine and in pods. torchrun never restarts anything: whoever started it does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

LEARNER = "rollout.entrypoints.learner"
CONFIG_OPTION = "--config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node's place in a learner of several: where rank 0 meets the others, and under which name."""

    num_nodes: int
    node_rank: int
    address: str
    rendezvous: str


def plan_ranks(
    config: str, processes_per_node: int, place: Place | None = None
) -> tuple[str, tuple[str, ...]]:
    """A module to run and its arguments; ``place`` None: all ranks are on this machine."""
    if processes_per_node == 1 and (place is None or place.num_nodes == 1):
        return LEARNER, (CONFIG_OPTION, config)
    return "torch.distributed.run", (
        *(("--standalone",) if place is None or place.num_nodes == 1 else _meeting(place)),
        *("--nproc-per-node", str(processes_per_node), "--max-restarts", "0"),
        *(
            "--no-python",
            sys.executable,
            "-m",
            "rollout.common.parent_death",
            LEARNER,
            CONFIG_OPTION,
            config,
        ),
    )


def _meeting(place: Place) -> tuple[str, ...]:
    host, _, port = place.address.rpartition(":")
    return (
        *("--nnodes", str(place.num_nodes), "--node-rank", str(place.node_rank)),
        *("--rdzv-backend", "static", "--rdzv-id", place.rendezvous.replace("/", "-")),
        *("--master-addr", host.strip("[]"), "--master-port", port),
    )
