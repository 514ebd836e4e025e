"""The Debian packages that the test cluster is built with and runs on, and their installation where it may happen.

A tool is asked for by its name on PATH, a library by its header: whoever has them from elsewhere needs no package.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.errors import BuildError

BUILDING = {
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "pkg-config": "pkg-config",
    "/usr/include/seccomp.h": "libseccomp-dev",
}
RUNNING = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "busybox": "busybox-static",
    "gcc": "gcc",
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
IMAGES = {"debootstrap": "debootstrap", KEYRING: "debian-archive-keyring", "buildah": "buildah"}
SANDBOXES = {"bwrap": "bubblewrap", "setpriv": "util-linux"}
LOCK = Path(__file__).parents[2] / "build" / "packages.lock"
"""Clusters are built beside tests that need packages of their own: one installs, the others wait."""


def missing(wanted: dict[str, str]) -> list[str]:
    """The packages of what is not on this machine, sorted."""
    return sorted({package for what, package in wanted.items() if not _is_here(what)})


def ensure(wanted: dict[str, str] | None = None) -> None:
    """Install what is missing where this process may; elsewhere leave it to the tests to say what they lack.

    `wanted` None: all that the test cluster needs.

    Raises:
        BuildError: apt-get could not install them.
    """
    needed = BUILDING | RUNNING | IMAGES if wanted is None else wanted
    if not missing(needed) or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(missing(needed))


def _install(lacking: list[str]) -> None:
    if not lacking:
        return
    print(f"installing {' '.join(lacking)}", file=sys.stderr, flush=True)
    _apt_get("update", "-qq")
    _apt_get("install", "-y", "-qq", "--no-install-recommends", *lacking)


def _is_here(what: str) -> bool:
    return Path(what).exists() if what.startswith("/") else shutil.which(what) is not None


def _apt_get(*arguments: str) -> None:
    command = ["apt-get", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-4000:]}")
