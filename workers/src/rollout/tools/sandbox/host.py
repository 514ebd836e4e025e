"""What sandboxes need of this machine, found once and tried once; else NoSandbox says what is missing.

Paths are absolute and of the system: nothing of a user's PATH decides what keeps the policy's code in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rollout.tools.sandbox.contract import NoSandbox
from rollout.tools.sandbox.seccomp import machine_calls

SYSTEM_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
VERSION_MIN = (0, 8)
"""The first bubblewrap that bounds a folder's size and forbids user namespaces inside."""
TRIAL_SECONDS_MAX = 30.0
LIBRARY_FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """``folders`` are seen in a sandbox, read-only; ``links`` are (name, target) of the root folder's links."""

    bwrap: str
    python: str
    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    drops_root: bool
    setpriv: str = "/usr/bin/setpriv"

    @staticmethod
    def find() -> Host:
        """What is here. Raises NoSandbox."""
        machine_calls()
        bwrap = _find_program("bwrap", "install the package bubblewrap (0.8 or newer)")
        _check_version(bwrap)
        drops_root = os.geteuid() == 0
        setpriv = _find_program("setpriv", "install the package util-linux") if drops_root else ""
        folders, links = _system_folders()
        python, prefix = _find_python(drops_root=drops_root)
        more = () if any(_is_below(prefix, one) for one in folders) else (prefix,)
        return Host(
            bwrap=bwrap,
            python=python,
            folders=(*folders, *more),
            links=links,
            drops_root=drops_root,
            setpriv=setpriv,
        )


def own_python(host: Host) -> tuple[str, tuple[str, ...]]:
    """This process's Python with its packages, and the folders that it needs beside the host's; for programs of people.

    The host's own Python, and no folder, where the user of sandboxes may not read this one.
    """
    python = Path(sys.prefix, "bin", "python3")
    needed = [Path(sys.prefix), Path(sys.base_prefix)]
    may_read = not host.drops_root or all(map(_all_may_read, [*needed, python]))
    if not python.exists() or not may_read:
        return host.python, ()
    wanted = dict.fromkeys(map(str, needed))
    more = [one for one in wanted if not any(_is_below(one, seen) for seen in host.folders)]
    return str(python), tuple(more)


def _find_program(name: str, fix: str) -> str:
    for folder in SYSTEM_FOLDERS:
        path = Path(folder, name)
        if os.access(path, os.X_OK):
            return str(path)
    raise NoSandbox(
        f"NoSandbox: tools that run what the policy writes need {name} in {', '.join(SYSTEM_FOLDERS)}:"
        f" {fix}, or leave those tools out of environment.tools"
    )


def _check_version(bwrap: str) -> None:
    told = subprocess.run(
        [bwrap, "--version"], capture_output=True, text=True, timeout=TRIAL_SECONDS_MAX, check=False
    ).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or tuple(map(int, found.groups())) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise NoSandbox(
            f"NoSandbox: {bwrap} says {told.strip()!r}, sandboxes need bubblewrap {least} or newer: install it"
        )


def _system_folders() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """``/usr``, and the folders of the root that are links into it; where they are none, they are seen too."""
    folders, links = ["/usr"], []
    for name in LIBRARY_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            links.append((name, str(path.readlink()).lstrip("/")))
        elif path.is_dir():
            folders.append(name)
    return tuple(folders), tuple(links)


def _find_python(*, drops_root: bool) -> tuple[str, str]:
    """A Python that a sandbox can see, and where it is installed: the system's, else that of this process."""
    own = Path(sys.base_prefix, "bin", "python3")
    candidates = [Path(folder, "python3") for folder in SYSTEM_FOLDERS]
    for path in [*candidates, own]:
        if path.exists() and _is_new(path) and (not drops_root or _all_may_read(path)):
            return str(path), str(path.resolve().parent.parent)
    raise NoSandbox(
        "NoSandbox: tools that run what the policy writes need a python3 (3.9 or newer) that others than root may"
        f" read; {own} is not one: install the package python3, or run as the user whose Python it is"
    )


def _is_new(path: Path) -> bool:
    program = "import sys; sys.exit(sys.version_info < (3, 9))"
    command = [str(path), "-I", "-S", "-c", program]
    return subprocess.run(command, timeout=TRIAL_SECONDS_MAX, check=False).returncode == 0


def _all_may_read(path: Path) -> bool:
    """Whether everybody may enter every folder on the way, links followed."""
    real = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in [real, *real.parents])


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
