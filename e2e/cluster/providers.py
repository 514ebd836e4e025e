"""Where tests get a cluster from: made here, made by kind, or somebody's own; chosen by `ROLLOUT_E2E_PROVIDER`."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import local, machine
from cluster.docker import kind
from cluster.errors import CannotRunHereError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape

PROVIDER = "ROLLOUT_E2E_PROVIDER"
KUBECONFIG = "ROLLOUT_E2E_KUBECONFIG"
PROVIDERS = ("local", "kind", "existing")


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
    chosen = environment.get(PROVIDER, "local")
    if chosen not in PROVIDERS:
        raise CannotRunHereError(why_not(chosen, environment))
    opens = dict(zip(PROVIDERS, (_open_local, _open_kind, _open_existing), strict=True))
    return opens[chosen](shape, environment)


def why_not(provider: str, environment: Mapping[str, str] = os.environ) -> str:
    """Why this provider gives no cluster here, before anything is started; empty when it may."""
    if provider not in PROVIDERS:
        return f"{PROVIDER}={provider!r}: expected one of {', '.join(PROVIDERS)}"
    if provider == "local":
        return machine.why_no_control_plane()
    if shutil.which("kubectl") is None:
        return f"{provider} needs kubectl, which is not on PATH"
    if provider == "kind":
        return kind.why_not()
    kubeconfig = environment.get(KUBECONFIG, "")
    if not Path(kubeconfig).is_file():
        return f"{KUBECONFIG}={kubeconfig!r}: expected the path of a kubeconfig"
    return ""


@contextmanager
def _open_local(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    with local.running(shape) as made:
        yield Cluster(kubectl=made.kubectl, import_image=made.import_image, local=made)


@contextmanager
def _open_kind(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster in Docker. Unproven: no machine of the project has had a daemon."""
    if reason := why_not("kind", environment):
        raise CannotRunHereError(reason)
    if shape.fake_nodes and not shape.real_nodes:
        raise CannotRunHereError("kind has real nodes only: fake ones need the local provider")
    name = f"rollout-e2e-{os.getpid()}"
    kubeconfig = kind.up(name)
    try:
        yield Cluster(
            kubectl=Kubectl(binary="kubectl", kubeconfig=kubeconfig),
            import_image=lambda archive: kind.load_image(name, archive),
        )
    finally:
        kind.down(name)


@contextmanager
def _open_existing(shape: Shape, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Somebody's cluster, as its kubeconfig has it; nothing of it is changed but what tests apply."""
    if reason := why_not("existing", environment):
        raise CannotRunHereError(reason)
    kubectl = Kubectl(binary="kubectl", kubeconfig=Path(environment[KUBECONFIG]))
    if shape.fake_nodes and not kubectl("get", "nodes", "-l", "type=kwok", "-o", "name"):
        raise CannotRunHereError(f"the cluster of {KUBECONFIG} has no kwok nodes (label type=kwok)")
    yield Cluster(kubectl=kubectl, import_image=_refuse_image)


def _refuse_image(archive: Path) -> None:
    raise CannotRunHereError(f"push {archive} to a registry that the existing cluster pulls from")
