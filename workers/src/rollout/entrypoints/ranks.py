"""A node's ranks: ``python -m rollout.entrypoints.ranks ARGUMENT...`` is torchrun with a meeting of our own.

torchrun's own meetings listen on every address of the machine, and the one that it takes for a single node
keeps pickled state where whoever reaches its port can put another. Here rank 0's node listens on one
address only (of a single node, the loopback), nothing is pickled, and every key is under a name that only
the ranks know. The store trusts whoever reaches it: keeping others away is the network's work.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import MutableMapping
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from rollout.common.parent_death import collect_from_here
from rollout.common.stacks import show_on_signal
from rollout.errors import SpecError
from rollout.learner.config.ranks import MEETING
from rollout.protocol.rendezvous import RENDEZVOUS_VARIABLE

JOIN_SECONDS_MAX = 600.0
"""How long a node waits for the others."""
BACKLOG = 1024
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


class Meeting(RendezvousHandler):
    """Nodes of known ranks meet once, at rank 0's address; none joins later."""

    def __init__(self, *, host: str, port: int, rank: int, num_nodes: int, name: str) -> None:
        self._host, self._port = host, port
        self._rank, self._num_nodes = rank, num_nodes
        self._name = name

    def get_backend(self) -> str:
        """As ``--rdzv-backend`` names it."""
        return MEETING

    @property
    def use_agent_store(self) -> bool:
        """The ranks use this store: nobody else has to listen."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """This node's place. Raises OSError where the address cannot be had, DistError where nobody comes."""
        store, port = self._open()
        place = RendezvousStoreInfo(master_addr=self._host, master_port=port)
        return RendezvousInfo(PrefixStore(self._name, store), self._rank, self._num_nodes, place)

    def _open(self) -> tuple[Store, int]:
        if self._rank > 0:
            return self._store(self._port, listening=None), self._port
        listening = listen(self._host, self._port)
        port = listening.getsockname()[1]
        return self._store(port, listening=listening.detach()), port

    def _store(self, port: int, *, listening: int | None) -> Store:
        return TCPStore(
            self._host,
            port,
            self._num_nodes,
            is_master=listening is not None,
            timeout=timedelta(seconds=JOIN_SECONDS_MAX),
            master_listen_fd=listening,
        )

    def is_closed(self) -> bool:
        """Never: whoever started this process starts another."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """None: a node that comes late belongs to another start."""
        return 0

    def get_run_id(self) -> str:
        """Not the name, which torchrun logs."""
        return MEETING

    def shutdown(self) -> bool:
        """Nothing is left behind."""
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address and no other; port 0 takes a free one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(
            error.errno, f"the learner's ranks cannot meet at {host}:{port}: {error.strerror}"
        ) from error
    return listening


def build_meeting(parameters: RendezvousParameters) -> Meeting:
    """What ``--nnodes``, ``--rdzv-endpoint``, ``--rdzv-conf rank=N`` and the environment say. Raises SpecError."""
    if parameters.max_nodes == 1:
        keep_to_this_machine(os.environ)
    name = os.environ.get(RENDEZVOUS_VARIABLE, "")
    if not name:
        raise SpecError(
            f"{RENDEZVOUS_VARIABLE} is not set: ranks of several nodes meet under the name that the"
            " coordinator gives their pods; start them as `python -m rollout.entrypoints.pod learner`"
        )
    host, _, port = parameters.endpoint.rpartition(":")
    return Meeting(
        host=host.strip("[]"),
        port=int(port),
        rank=int(parameters.config["rank"]),
        num_nodes=parameters.max_nodes,
        name=name,
    )


def keep_to_this_machine(environment: MutableMapping[str, str]) -> None:
    """A name that nobody can guess, and no listener of gloo's beyond the loopback."""
    environment[RENDEZVOUS_VARIABLE] = f"local/{secrets.token_hex(16)}"
    loopback = [name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}]
    if loopback:
        environment.setdefault(GLOO_INTERFACE, loopback[0])


def main() -> None:
    """Start the ranks of this node and end as they do."""
    collect_from_here()
    show_on_signal()
    rendezvous_handler_registry.register(MEETING, build_meeting)
    torchrun.main(sys.argv[1:])


if __name__ == "__main__":
    main()
