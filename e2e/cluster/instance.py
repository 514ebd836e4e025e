"""One running cluster: its folder, its name in links and cgroups, its processes, and whom it belongs to."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cluster import paths
from cluster.control import processes
from cluster.control.processes import Process
from cluster.errors import ClusterError

FOLDERS = ("pki", "log", "pid", "node", "images", "volumes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A cluster's folder; `owned` ones die with the process that made them."""

    name: str
    root: Path
    owned: bool

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.pki / "admin.kubeconfig"

    @property
    def pki(self) -> Path:
        """Certificates, keys and kubeconfigs."""
        return self.root / "pki"

    @property
    def audit_log(self) -> Path:
        """One JSON line per request, when the control plane was started with an audit level."""
        return self.root / "log" / "audit.log"

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a process of this cluster and keep its pid file."""
        log = self.root / "log" / f"{name}.log"
        process = processes.start(name, command, log=log, owned=self.owned, environment=environment)
        process.save(self.root / "pid")
        return process

    def processes(self) -> dict[str, Process]:
        """Every process started so far, ended ones included."""
        return processes.load(self.root / "pid")

    def stop(self, name: str) -> None:
        """End one process at once."""
        self.processes()[name].stop()

    def remember(self, **facts: object) -> None:
        """Add facts to the instance's state, for other processes."""
        state = self.recall() | facts
        (self.root / "state.json").write_text(json.dumps(state))

    def recall(self) -> dict:
        """The instance's state."""
        file = self.root / "state.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def orphaned(self) -> bool:
        """Whether the process that owned it has ended without tearing it down."""
        owner = self.recall().get("owner")
        return owner is not None and Process(**owner).handle() is None

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.root, ignore_errors=True)


def create(name: str = "", *, owned: bool) -> Instance:
    """Make the folder of a new instance.

    Raises:
        ClusterError: an instance of that name exists.
    """
    name = name or f"t{secrets.token_hex(3)}"
    root = paths.instances() / name
    try:
        root.mkdir()
    except FileExistsError:
        raise ClusterError(
            f"cluster {name!r} exists ({root}): end it with `python -m cluster down {name}`"
        ) from None
    for folder in FOLDERS:
        (root / folder).mkdir()
    made = Instance(name=name, root=root, owned=owned)
    made.remember(owner=asdict(_this_process()) if owned else None)
    return made


def find(name: str) -> Instance:
    """The instance of that name.

    Raises:
        ClusterError: there is none.
    """
    known = {instance.name: instance for instance in everything()}
    if name not in known:
        raise ClusterError(f"no cluster {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]


def everything() -> list[Instance]:
    """Every instance with a folder."""
    return [
        Instance(name=root.name, root=root, owned=False)
        for root in sorted(paths.instances().iterdir())
    ]


def _this_process() -> Process:
    me = psutil.Process()
    return Process(name="owner", pid=os.getpid(), created=me.create_time(), log="")
