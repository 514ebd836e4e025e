"""Puts a local cluster together, and takes it apart again: by its owner, by hand, or after a crash."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster import build, machine, pins
from cluster import instance as instances
from cluster.commands import Options
from cluster.control.control_plane import ControlPlane
from cluster.errors import CannotRunHereError, ClusterError
from cluster.instance import Instance
from cluster.kubectl import Kubectl
from cluster.nodes import addons, cgroups, kwok
from cluster.nodes import network as networks
from cluster.nodes.network import Network
from cluster.nodes.node import Node, cgroup_of
from cluster.paths import locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many nodes of which sort; no real node means a control plane on loopback."""

    fake_nodes: int = 2
    real_nodes: int = 0
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A running local cluster."""

    instance: Instance
    control_plane: ControlPlane
    kubectl: Kubectl
    nodes: tuple[Node, ...] = ()

    def import_image(self, archive: Path) -> None:
        """Give every node an image, and remember it: there is no registry from which a node could get it later."""
        kept = self.instance.root / "images" / archive.name
        kept.unlink(missing_ok=True)
        kept.symlink_to(archive)
        for node in self.nodes:
            if node.alive():
                node.import_image(archive)

    @contextmanager
    def lost(self, node: Node) -> Iterator[None]:
        """A node's machine is gone for a block; afterwards it is back under its old name, Ready, with its images."""
        node.lose()
        try:
            yield
        finally:
            self.kubectl("delete", "node", node.name, "--ignore-not-found")
            self.start_node(node)
            self.wait_for_node(node)

    @contextmanager
    def silent(self, node: Node) -> Iterator[None]:
        """A node's kubelet is gone for a block; afterwards the node is Ready again."""
        node.stop_kubelet()
        try:
            yield
        finally:
            node.start_kubelet()
            self.kubectl.wait("--for=condition=Ready", f"node/{node.name}")

    def start_node(self, node: Node) -> None:
        """Start a node without pods, with every image that the cluster was given; also one that was lost."""
        user = f"system:node:{node.name}"
        living = [other for other in self.nodes if other is not node and other.alive()]
        node.start(self.control_plane.kubeconfig(user, "system:nodes"), living)

    def wait_for_node(self, node: Node) -> None:
        """Wait until a started node is Ready."""
        self.kubectl.wait("--for=create", f"node/{node.name}")
        self.kubectl.wait("--for=condition=Ready", f"node/{node.name}")


def up(shape: Shape, *, name: str = "", owned: bool) -> LocalCluster:
    """Start a cluster; what crashed before it is taken apart first.

    Raises:
        CannotRunHereError: this machine lacks something; nothing was started.
        ClusterError: something did not start; everything started was ended.
    """
    _check_machine(shape)
    sweep()
    instance = instances.create(name, owned=owned)
    try:
        return _start(instance, shape)
    except BaseException:
        down(instance)
        raise


@contextmanager
def running(shape: Shape) -> Iterator[LocalCluster]:
    """A cluster for the length of a block."""
    cluster = up(shape, owned=True)
    try:
        yield cluster
    finally:
        down(cluster.instance)


def down(instance: Instance) -> None:
    """End every process and remove every link, cgroup and file of a cluster.

    Raises:
        ClusterError: something is still mounted below its folder or a cgroup would not go.
    """
    for process in reversed(instance.processes().values()):
        process.stop()
    state = instance.recall()
    left = [group for name in state.get("cgroups", ()) for group in cgroups.remove(name)]
    _release_network(state)
    if left := [*left, *_mounts_below(instance.root)]:
        raise ClusterError(f"{instance.root} is kept, because these are in use: {left}")
    instance.remove()


def sweep() -> list[str]:
    """Take apart the clusters whose owner ended without doing so; returns their names."""
    with locked("sweep"):
        orphans = [one for one in instances.everything() if one.orphaned()]
        for orphan in orphans:
            down(orphan)
    return [orphan.name for orphan in orphans]


def _start(instance: Instance, shape: Shape) -> LocalCluster:
    network = _claim_network(instance, shape) if shape.real_nodes else None
    options = replace(shape.options, address=network.host) if network else shape.options
    control_plane = ControlPlane(instance, options)
    control_plane.start()
    cluster = LocalCluster(
        instance=instance,
        control_plane=control_plane,
        kubectl=Kubectl(binary=str(build.path("kubectl")), kubeconfig=instance.kubeconfig),
        nodes=_build_nodes(instance, network, shape.real_nodes) if network else (),
    )
    if network:
        _start_nodes(cluster, network)
    if shape.fake_nodes:
        kwok.start(instance, cluster.kubectl, shape.fake_nodes, tainted=bool(network))
    return cluster


def _claim_network(instance: Instance, shape: Shape) -> Network:
    build.ensure(pins.REAL_NODES)
    network = networks.claim()
    numbers = range(1, shape.real_nodes + 1)
    instance.remember(
        network=network.index,
        real_nodes=shape.real_nodes,
        cgroups=[cgroup_of(instance, number) for number in numbers],
    )
    return network


def _build_nodes(instance: Instance, network: Network, count: int) -> tuple[Node, ...]:
    return tuple(Node(instance, network, number) for number in range(1, count + 1))


def _start_nodes(cluster: LocalCluster, network: Network) -> None:
    for node in cluster.nodes:
        cluster.start_node(node)
    addons.start(cluster.instance, cluster.kubectl, network)
    for node in cluster.nodes:
        cluster.wait_for_node(node)


def _check_machine(shape: Shape) -> None:
    reason = machine.why_no_real_nodes() if shape.real_nodes else machine.why_no_control_plane()
    if reason:
        raise CannotRunHereError(reason)


def _release_network(state: dict) -> None:
    if "network" not in state:
        return
    network = Network(index=state["network"])
    for number in range(1, state.get("real_nodes", 0) + 1):
        network.disconnect(number)
    network.release()


def _mounts_below(root: Path) -> list[str]:
    mounted = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in mounted if Path(point).is_relative_to(root)]
