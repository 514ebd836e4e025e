"""Ranks of one machine listen on its loopback, those of several nodes on the address that they were given."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.control.ports import find_free_port
from rollout.common.parent_death import tied_argv
from rollout.learner.config.ranks import RankPlace, plan_ranks

RANK = """
import json, os, sys
from pathlib import Path
import psutil
import torch
from rollout.learner.model import parallel

here = parallel.join(sharded=False)
mine = torch.tensor([here.rank + 1.0])
here.add_up(mine)
me = psutil.Process()
found = {}
for role, process in (("rank", me), ("launcher", me.parent())):
    open_sockets = process.net_connections("tcp")
    found[role] = [one.laddr.ip for one in open_sockets if one.status == psutil.CONN_LISTEN]
here.gather(0, int)
found |= {"sum": int(mine), "name": os.environ["ROLLOUT_RENDEZVOUS"], "command": me.parent().cmdline()}
Path(sys.argv[1], f"{here.rank}.json").write_text(json.dumps(found))
here.close()
"""


def launch(folder: Path, processes: int, place: RankPlace | None = None) -> subprocess.Popen:
    """A launcher as the product starts it, whose ranks run ``RANK`` instead of the learner."""
    module, arguments = plan_ranks("unread", processes, place)
    command = tied_argv(module, *arguments[:-5], "-c", RANK, str(folder))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment.pop("GLOO_SOCKET_IFNAME", None)
    environment.pop("ROLLOUT_RENDEZVOUS", None)
    if place is not None:
        environment["ROLLOUT_RENDEZVOUS"] = "uid/1/secret-of-the-test"
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def meet(folder: Path, launchers: list[subprocess.Popen]) -> list[dict]:
    try:
        for one in launchers:
            said = one.communicate(timeout=240)[1]
            assert one.returncode == 0, said[-3000:]
    finally:
        for one in launchers:
            one.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.process
def test_ranks_of_one_machine_listen_on_its_loopback_under_a_name_nobody_can_guess(tmp_path):
    first, second = meet(tmp_path, [launch(tmp_path, 2)])
    assert first["sum"] == second["sum"] == 3
    listening = [ip for one in (first, second) for ip in (*one["rank"], *one["launcher"])]
    assert listening, "ranks listen somewhere"
    assert all(ipaddress.ip_address(ip).is_loopback for ip in listening)
    assert re.fullmatch(r"local/[0-9a-f]{32}", first["name"])
    assert first["name"] == second["name"]
    assert first["name"] not in " ".join(first["command"]), "others see the command line"


@pytest.mark.process
def test_nodes_meet_at_the_one_address_that_they_were_given(tmp_path):
    address = f"127.0.0.1:{find_free_port()}"
    places = [RankPlace(num_nodes=2, node_rank=rank, address=address) for rank in (0, 1)]
    first, second = meet(tmp_path, [launch(tmp_path, 1, place) for place in places])
    assert first["sum"] == second["sum"] == 3
    assert first["launcher"] == ["127.0.0.1"]
    assert second["launcher"] == []
    assert first["name"] == "uid/1/secret-of-the-test"
    assert "secret-of-the-test" not in " ".join(first["command"])


@pytest.mark.process
def test_nodes_without_a_name_do_not_meet(tmp_path):
    place = RankPlace(num_nodes=2, node_rank=0, address=f"127.0.0.1:{find_free_port()}")
    module, arguments = plan_ranks("unread", 1, place)
    environment = {**os.environ, "ROLLOUT_RENDEZVOUS": ""}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert (
        "ROLLOUT_RENDEZVOUS is not set: ranks of several nodes meet under the name" in done.stderr
    )
