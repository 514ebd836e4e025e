"""Free ports that stay free until they are used: each belongs to the process that asked, as long as that lives.

They lie below the ports that the kernel gives to clients, and a lock file for each keeps other processes of this user
away. A port that was bound to be found, and let go to be used, could be anybody's in between.
"""

import fcntl
import random
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from cluster.errors import StartError
from cluster.paths import build_cache

LOOPBACK = "127.0.0.1"
FIRST = 10_000
CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
CLIENTS_FIRST = 32_768
"""Where the kernel does not say it."""
_held: dict[int, IO[bytes]] = {}
"""The lock files of this process's ports: open as long as it lives."""


def find_free_ports(hosts: Sequence[str]) -> list[int]:
    """One port for each address, this process's own.

    Raises:
        StartError: every port is taken.
    """
    return [claim(host, _candidates()) for host in hosts]


def find_free_port() -> int:
    """A port on loopback, this process's own."""
    return find_free_ports([LOOPBACK])[0]


def _candidates() -> Iterator[int]:
    """Every port below the clients', from one drawn by lot on."""
    end = int(CLIENTS.read_text().split()[0]) if CLIENTS.exists() else CLIENTS_FIRST
    count = max(end - FIRST, 1)
    start = random.randrange(count)
    return (FIRST + (start + number) % count for number in range(count))


def claim(host: str, candidates: Iterable[int]) -> int:
    """The first of the candidates that is free, for this process as long as it lives.

    Raises:
        StartError: none is.
    """
    for port in candidates:
        if port not in _held and (lock := _lock(port)):
            if _is_free(host, port):
                _held[port] = lock
                return port
            lock.close()
    raise StartError(f"no free port for {host}: other processes have every one that was tried")


def _lock(port: int) -> IO[bytes] | None:
    """The port's lock; None where another process has it."""
    folder = build_cache() / "ports"
    folder.mkdir(exist_ok=True)
    lock = (folder / str(port)).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((host, port))
        except OSError:
            return False
    return True
