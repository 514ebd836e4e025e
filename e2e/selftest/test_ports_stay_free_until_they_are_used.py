"""A port that was given to a test is nobody else's until the test ends: not a client's, not another worker's."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.control import ports
from cluster.control.ports import LOOPBACK, claim, find_free_ports
from cluster.errors import StartError

OTHERS = "from cluster.control.ports import *; import sys; print(*find_free_ports([LOOPBACK] * 200)); input()"


def test_no_port_is_given_twice():
    given = find_free_ports([LOOPBACK] * 50)
    assert len(set(given)) == 50


def test_no_port_is_given_to_two_living_processes():
    command = [sys.executable, "-c", OTHERS]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(ports.__file__).parents[2],
    ) as other:
        theirs = set(map(int, other.stdout.readline().split()))
        assert len(theirs) == 200
        with pytest.raises(StartError, match="no free port"):
            claim(LOOPBACK, theirs)
        other.stdin.write("\n")
    assert claim(LOOPBACK, theirs) in theirs


def test_a_port_on_which_somebody_listens_is_not_given():
    with (
        socket.create_server((LOOPBACK, 0)) as listening,
        pytest.raises(StartError, match="no free port"),
    ):
        claim(LOOPBACK, [listening.getsockname()[1]])


def test_the_kernel_gives_no_client_a_port_of_ours():
    first = int(ports.CLIENTS.read_text().split()[0])
    assert max(find_free_ports([LOOPBACK] * 20)) < first
