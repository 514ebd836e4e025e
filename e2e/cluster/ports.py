"""Free ports, several at a time: all are held until the last is found."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def find_free_ports(hosts: Sequence[str]) -> list[int]:
    """One free port for each address; another process may still take one before it is used."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in hosts]
        for one, host in zip(sockets, hosts, strict=True):
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def find_free_port() -> int:
    """A free port on loopback."""
    return find_free_ports([LOOPBACK])[0]
