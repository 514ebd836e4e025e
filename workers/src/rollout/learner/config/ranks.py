"""How the ranks of a learner are started: one bare process, or torchrun for several. Pure.

The same on one machine and in pods. torchrun never restarts anything: whoever started it does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

LEARNER = "rollout.entrypoints.learner"
LAUNCHER = "rollout.entrypoints.ranks"
MEETING = "rollout"
"""The launcher's own kind of torchrun's meetings."""
LOOPBACK = "127.0.0.1"
CONFIG_OPTION = "--config"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One node's place in a learner of several: where rank 0 meets the others.

    The name that they meet under is told by the environment, which others on the machine cannot read.
    """

    num_nodes: int
    """Pods of the learner, >= 1."""
    node_rank: int
    """This one's, from 0 to ``num_nodes - 1``."""
    address: str
    """``HOST:PORT`` of node rank 0; port 0: any free one, for one node only."""


ALONE = RankPlace(num_nodes=1, node_rank=0, address=f"{LOOPBACK}:0")
"""All ranks on this machine, where nobody else can reach them; any free port."""


def plan_ranks(
    config: str, processes_per_node: int, place: RankPlace | None = None
) -> tuple[str, tuple[str, ...]]:
    """A module to run and its arguments; ``place`` None: all ranks are on this machine."""
    if processes_per_node == 1 and (place is None or place.num_nodes == 1):
        return LEARNER, (CONFIG_OPTION, config)
    return LAUNCHER, (
        *_meeting(place if place is not None and place.num_nodes > 1 else ALONE),
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


def _meeting(place: RankPlace) -> tuple[str, ...]:
    return (
        *("--nnodes", str(place.num_nodes), "--rdzv-backend", MEETING),
        *("--rdzv-endpoint", place.address, "--rdzv-conf", f"rank={place.node_rank}"),
    )
