"""Where tests get a cluster from: made here, made by kind, or somebody's own; chosen by `ROLLOUT_E2E_PROVIDER`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import local
from cluster.errors import CannotRunHereError, StartError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape

PROVIDER = "ROLLOUT_E2E_PROVIDER"
KUBECONFIG = "ROLLOUT_E2E_KUBECONFIG"
KIND_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster as tests see it; `local` is there when its processes may be killed and restarted."""

    kubectl: Kubectl
    import_image: Callable[[Path], None]
    local: LocalCluster | None = None


def open_cluster(
    shape: Shape, environment: Mapping[str, str] = os.environ
) -> AbstractContextManager[Cluster]:
    """A cluster of this shape for the length of a block.

    Raises:
        CannotRunHereError: this machine or the chosen provider cannot give one; says why.
    """
    known = {"local": _open_local, "kind": _open_kind, "existing": _open_existing}
    chosen = environment.get(PROVIDER, "local")
    if chosen not in known:
        raise CannotRunHereError(f"{PROVIDER}={chosen!r}: expected one of {', '.join(known)}")
    return known[chosen](shape, environment)


@contextmanager
def _open_local(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    with local.running(shape) as made:
        yield Cluster(kubectl=made.kubectl, import_image=made.import_image, local=made)


@contextmanager
def _open_kind(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster in Docker. Unproven: no machine of the project has had Docker so far."""
    _need("kind", "docker", "kubectl")
    if shape.fake_nodes and not shape.real_nodes:
        raise CannotRunHereError("kind has real nodes only: fake ones need the local provider")
    name = f"rollout-e2e-{os.getpid()}"
    with tempfile.TemporaryDirectory() as scratch:
        kubeconfig = Path(scratch) / "kubeconfig"
        _run("kind", "create", "cluster", "--name", name, "--kubeconfig", str(kubeconfig))
        try:
            yield Cluster(
                kubectl=Kubectl(binary="kubectl", kubeconfig=kubeconfig),
                import_image=lambda archive: _run(
                    "kind", "load", "image-archive", str(archive), "--name", name
                ),
            )
        finally:
            _run("kind", "delete", "cluster", "--name", name)


@contextmanager
def _open_existing(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Somebody's cluster, as its kubeconfig has it; nothing of it is changed but what tests apply."""
    _need("kubectl")
    kubeconfig = environment.get(KUBECONFIG, "")
    if not Path(kubeconfig).is_file():
        raise CannotRunHereError(f"{KUBECONFIG}={kubeconfig!r}: expected the path of a kubeconfig")
    kubectl = Kubectl(binary="kubectl", kubeconfig=Path(kubeconfig))
    if shape.fake_nodes and not kubectl("get", "nodes", "-l", "type=kwok", "-o", "name"):
        raise CannotRunHereError(f"the cluster of {KUBECONFIG} has no kwok nodes (label type=kwok)")
    yield Cluster(kubectl=kubectl, import_image=_refuse_image)


def _refuse_image(archive: Path) -> None:
    raise CannotRunHereError(f"push {archive} to a registry that the existing cluster pulls from")


def _need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise CannotRunHereError(f"not on PATH: {', '.join(missing)}")


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=KIND_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise StartError(f"{' '.join(command)}: {done.stderr}")
