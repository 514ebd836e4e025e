"""A real node: namespaces of its own with containerd, kubelet and kube-proxy inside.

Its first process is the end of its namespaces: killing it kills every container and unmounts everything.
"""

import shutil
import subprocess
from pathlib import Path

import psutil

from cluster import build
from cluster.control import processes
from cluster.control.pki import write_private
from cluster.control.processes import Process
from cluster.errors import StartError
from cluster.instance import Instance
from cluster.nodes import cgroups, images
from cluster.nodes.network import Network
from cluster.nodes.node_files import NodePlace, render_all
from cluster.paths import HERE

FOLDERS = ("log", "kubelet", "containerd", "cni", "cni-conf", "etc")
NAMESPACES = ("-n", "-m", "-p", "-u", "-i")
BINARIES = ("containerd", "runc", "kubelet", "bridge")


class Node:
    """One node of a local cluster, known by its number from 1."""

    def __init__(self, instance: Instance, network: Network, number: int) -> None:
        self.instance = instance
        self.number = number
        name = f"node-{number}"
        self.place = NodePlace(
            name=name,
            number=number,
            folder=instance.root / "node" / name,
            cgroup=cgroup_of(instance, number),
            network=network,
            pki=instance.pki,
        )

    @property
    def name(self) -> str:
        """The node's name in Kubernetes."""
        return self.place.name

    def start(self, kubeconfig: str, others: list["Node"]) -> None:
        """Start the node without pods, with the cluster's images; `others` are the nodes it gets routes to, and they to it.

        Raises:
            StartError: a namespace or a link could not be made.
        """
        self._write_files(kubeconfig)
        cgroups.create(self.place.cgroup)
        unshare = ["unshare", *NAMESPACES, "--propagation", "private", "--fork"]
        command = [*unshare, "--kill-child=SIGKILL", str(HERE / "node_init.sh")]
        holder = self.instance.start(self.name, command, environment=self._environment())
        init = self._find_init(holder)
        self.place.network.connect(self.number, init.pid)
        for other in others:
            self.place.network.route(init.pid, other.number)
            self.place.network.route(other.init.pid, self.number)
        (self.place.folder / "connected").touch()

    @property
    def init(self) -> Process:
        """The node's first process.

        Raises:
            StartError: the node was never started.
        """
        if found := self.instance.processes().get(f"{self.name}-init"):
            return found
        raise StartError(f"{self.name} was never started")

    def alive(self) -> bool:
        """Whether the node was started and lives."""
        found = self.instance.processes().get(f"{self.name}-init")
        return found is not None and found.handle() is not None

    def run(self, *command: str) -> str:
        """Run a command inside the node and return its output.

        Raises:
            StartError: it failed.
        """
        enter = ["nsenter", "-t", str(self.init.pid), *NAMESPACES, "--"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartError(f"{self.name}: {' '.join(command)}: {done.stderr}")
        return done.stdout

    def import_image(self, archive: Path) -> None:
        """Give the node an image for as long as it lives; `LocalCluster.import_image` also for its next life."""
        self.run(str(build.path("ctr")), "-n", "k8s.io", "images", "import", str(archive))

    def stop_kubelet(self) -> None:
        """Kill the kubelet and keep it down: containers go on, nobody reports them."""
        self.run("sh", "-c", "touch /run/kubelet.off; kill -9 $(cat /run/kubelet.pid)")

    def start_kubelet(self) -> None:
        """Undo `stop_kubelet`."""
        self.run("rm", "-f", "/run/kubelet.off")

    def lose(self) -> None:
        """Lose the machine: everything in it dies at once, and its state is gone."""
        self.init.stop()
        self.instance.stop(self.name)
        self.place.network.disconnect(self.number)
        cgroups.remove(self.place.cgroup)
        shutil.rmtree(self.place.folder)

    def _write_files(self, kubeconfig: str) -> None:
        for folder in FOLDERS:
            (self.place.folder / folder).mkdir(parents=True)
        for name, text in render_all(self.place).items():
            folder = "cni-conf" if name.endswith(".conflist") else "etc"
            (self.place.folder / folder / name).write_text(text)
        write_private(self._kubeconfig, kubeconfig.encode())

    @property
    def _kubeconfig(self) -> Path:
        return self.place.pki / f"{self.name}.kubeconfig"

    def _environment(self) -> dict[str, str]:
        archives = [*images.ensure_base(), *sorted((self.instance.root / "images").glob("*.tar"))]
        return {
            "NODE": self.name,
            "FOLDER": str(self.place.folder),
            "KUBECONFIG_OF_NODE": str(self._kubeconfig),
            "NODE_ADDRESS": self.place.network.node(self.number),
            "BINARIES": ":".join(str(build.folder(binary)) for binary in BINARIES),
            "IMAGES": " ".join(map(str, archives)),
        }

    def _find_init(self, holder: Process) -> Process:
        def children() -> list[psutil.Process]:
            found = holder.handle()
            return found.children() if found else []

        processes.wait_ready(holder, lambda: bool(children()), "a namespace")
        child = children()[0]
        init = Process(
            name=f"{self.name}-init", pid=child.pid, created=child.create_time(), log=holder.log
        )
        init.save(self.instance.root / "pid")
        return init


def cgroup_of(instance: Instance, number: int) -> str:
    """The name of a node's cgroup: no two clusters share one."""
    return f"ro-{instance.name}-{number}"
