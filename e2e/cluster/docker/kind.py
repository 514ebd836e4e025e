"""A cluster in Docker, made by kind of our configuration. Unproven: no machine of the project has had a Docker daemon.

kind is the machine's or built from its Go module; its own code loads and checks `manifests/kind/cluster.yaml`, which
is as far as a machine without a daemon can go.
"""

import shutil
import subprocess
from pathlib import Path

from cluster import build, pins
from cluster.errors import CannotRunHereError, StartError
from cluster.paths import REPOSITORY, build_cache

CONFIG = REPOSITORY / "manifests" / "kind" / "cluster.yaml"
KIND_SECONDS_MAX = 600.0
DAEMON_SECONDS_MAX = 30.0


def why_not() -> str:
    """Why no cluster can be made here; empty when one can."""
    docker = shutil.which("docker")
    if docker is None:
        return "kind needs docker, which is not on PATH"
    command = [docker, "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DAEMON_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"kind needs Docker, whose daemon did not answer for {DAEMON_SECONDS_MAX:.0f} s"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no answer"]
        return f"kind needs Docker's daemon: {said[-1]}"
    return ""


def up(name: str) -> Path:
    """Make the cluster; its kubeconfig.

    Raises:
        CannotRunHereError: no Docker here; nothing was started.
        StartError: kind could not; what it made is away again.
    """
    if reason := why_not():
        raise CannotRunHereError(reason)
    kubeconfig = _kubeconfig(name)
    kubeconfig.parent.mkdir(exist_ok=True)
    # kind takes away what it made when it fails, and nothing of a cluster that was there
    _kind("create", "cluster", "--config", str(CONFIG), *_who(name), *_where(kubeconfig))
    return kubeconfig


def down(name: str) -> None:
    """End the cluster; one that is not there is none."""
    if reason := why_not():
        raise CannotRunHereError(reason)
    kubeconfig = _kubeconfig(name)
    _kind("delete", "cluster", *_who(name), *_where(kubeconfig))
    kubeconfig.unlink(missing_ok=True)


def load_image(name: str, archive: Path) -> None:
    """Put an image on every node."""
    _kind("load", "image-archive", str(archive), *_who(name))


def binary() -> str:
    """The machine's kind, or one that is built now."""
    if machine := shutil.which("kind"):
        return machine
    build.ensure(pins.KIND)
    return str(build.path(pins.KIND[0]))


def _kubeconfig(name: str) -> Path:
    return build_cache() / "kind" / f"{name}.kubeconfig"


def _who(name: str) -> tuple[str, str]:
    return ("--name", name)


def _where(kubeconfig: Path) -> tuple[str, str]:
    return ("--kubeconfig", str(kubeconfig))


def _kind(*arguments: str) -> None:
    command = [binary(), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=KIND_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise StartError(f"{' '.join(command)}: {done.stderr}")
