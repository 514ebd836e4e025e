"""Ranks find each other under the name that their group was given; those of another start find nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cluster.control.ports import find_free_port

RANK = """
import sys
import torch
from rollout.learner.model import parallel
parallel.COLLECTIVE_SECONDS_MAX = float(sys.argv[1])
try:
    here = parallel.join(sharded=False)
    mine = torch.tensor([here.rank + 1.0])
    here.add_up(mine)
    print("met", int(mine))
    here.close()
except (RuntimeError, torch.distributed.DistError) as error:
    print("alone", type(error).__name__)
"""


def start(rank: int, port: int, rendezvous: str, seconds: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, str(seconds)],
        env={
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ROLLOUT_RENDEZVOUS": rendezvous,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def meet(names: tuple[str, str], seconds: float) -> list[str]:
    port = find_free_port()
    ranks = [start(rank, port, name, seconds) for rank, name in enumerate(names)]
    try:
        return [rank.communicate(timeout=300)[0].strip().splitlines()[-1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.process
def test_ranks_of_one_name_meet():
    assert meet(("uid/1/a", "uid/1/a"), 240.0) == ["met 3", "met 3"]


@pytest.mark.slow
def test_ranks_of_another_incarnation_do_not():
    assert all(said.startswith("alone") for said in meet(("uid/2/b", "uid/1/a"), 30.0))
