"""One bridge per cluster, with addresses that no other cluster on this machine has.

Making the bridge is the claim on its number: the kernel lets only one succeed. Pods keep their addresses (routes, no
NAT), so they reach the host and each other and nothing outside.
"""

import subprocess
from dataclasses import dataclass

from cluster.errors import StartError

CLUSTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The addresses of cluster number `index` on this machine."""

    index: int

    @property
    def bridge(self) -> str:
        """The link that joins the nodes."""
        return f"ro-br{self.index}"

    @property
    def host(self) -> str:
        """The host on the bridge: API server and DNS."""
        return f"10.90.{self.index}.1"

    @property
    def pods(self) -> str:
        """The range of every pod."""
        return f"10.{128 + self.index}.0.0/16"

    def node(self, number: int) -> str:
        """A node's address."""
        return f"10.90.{self.index}.{10 + number}"

    def pods_of(self, number: int) -> str:
        """The range of one node's pods."""
        return f"10.{128 + self.index}.{number}.0/24"

    def veth(self, number: int) -> str:
        """The host's end of a node's cable."""
        return f"ro-v{self.index}-{number}"

    def connect(self, number: int, pid: int) -> None:
        """Lay the cable of the node whose init has `pid`, and its routes."""
        inside = ("nsenter", "-t", str(pid), "-n")
        veth, address = self.veth(number), self.node(number)
        run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "link", "set", veth, "master", self.bridge, "up")
        run(*inside, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "route", "add", "default", "via", self.host)
        run("ip", "route", "replace", self.pods_of(number), "via", address)

    def route(self, pid: int, other: int) -> None:
        """Tell the node with `pid` where the pods of node `other` are."""
        route = ("ip", "route", "replace", self.pods_of(other), "via", self.node(other))
        run("nsenter", "-t", str(pid), "-n", *route)

    def disconnect(self, number: int) -> None:
        """Remove a node's cable; its route goes with it or is removed too."""
        attempt("ip", "link", "del", self.veth(number))
        attempt("ip", "route", "del", self.pods_of(number))

    def release(self) -> None:
        """Remove the bridge: the number is free again."""
        attempt("ip", "link", "del", self.bridge)


def claim() -> Network:
    """The first free number, taken.

    Raises:
        StartError: no bridge can be made, or all numbers are taken.
    """
    for index in range(CLUSTERS_MAX):
        network = Network(index=index)
        made = attempt("ip", "link", "add", network.bridge, "type", "bridge")
        if made.returncode == 0:
            run("ip", "addr", "add", f"{network.host}/24", "dev", network.bridge)
            run("ip", "link", "set", network.bridge, "up")
            return network
        if "File exists" not in made.stderr:
            raise StartError(f"no bridge {network.bridge}: {made.stderr.strip()}")
    raise StartError(f"all {CLUSTERS_MAX} bridges are taken: `python -m cluster status`, then down")


def run(*command: str) -> None:
    """Run a command.

    Raises:
        StartError: it failed.
    """
    done = attempt(*command)
    if done.returncode:
        raise StartError(f"{' '.join(command)}: {done.stderr.strip()}")


def attempt(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended."""
    return subprocess.run(command, capture_output=True, text=True, check=False)
