"""Runs a module in a process for which a file stands where a cluster's DNS would: `python resolving.py MODULE`.

The operator runs on this machine, outside the cluster's network. A line of the file (`ROLLOUT_E2E_HOSTS`) is a name, an
address and the port that stands for every port there; names of Services that are not in it do not exist.
"""

import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

HOSTS = "ROLLOUT_E2E_HOSTS"
_ask = socket.getaddrinfo


def find(hosts: Path, name: str, port: Any) -> tuple[str, Any]:
    """Where a name leads; to itself where the file is not asked. Raises socket.gaierror."""
    for known, address, number in map(str.split, hosts.read_text().splitlines()):
        if known == name:
            return address, int(number)
    if name.endswith(".svc"):
        raise socket.gaierror(socket.EAI_NONAME, f"{name}: no such Service")
    return name, port


def resolve(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
    """As socket.getaddrinfo."""
    name = host.decode() if isinstance(host, bytes) else host or ""
    return _ask(*find(Path(os.environ[HOSTS]), name, port), *arguments, **named)


if __name__ == "__main__":
    socket.getaddrinfo = resolve
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
