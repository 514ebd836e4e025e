"""A cluster of real nodes whose owner was killed leaves no process, link, route, cgroup, mount or file once swept.

Quick: `down` itself fails where something is left of a cluster of real nodes, and each file with one ends so.
"""

import subprocess
from pathlib import Path

import pytest

from cluster import local
from cluster.machine import CGROUPS, why_no_real_nodes
from cluster.nodes.network import Network
from owners import start_and_kill

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.kit]


def test_nothing_is_left_of_a_swept_cluster():
    if reason := why_no_real_nodes():
        pytest.skip(f"cannot run here: {reason}")
    left = start_and_kill(real_nodes=1)
    network = Network(index=left.network)

    local.sweep()

    assert [process.name for process in left.processes if process.handle()] == []
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert network.bridge + ":" not in links
    assert network.veth(1) + "@" not in links
    assert list(CGROUPS.glob(f"*/ro-{left.instance.name}-*")) == []
    assert str(left.instance.root) not in Path("/proc/self/mountinfo").read_text()
    assert not left.instance.root.exists()
