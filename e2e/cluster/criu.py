"""CRIU 4.2 or newer for tests: the machine's, else Debian's newest in a folder of its own, with the libraries that it needs.

Nothing of it is installed: its packages lie in the user's cache folder under their digest, beside a list of their versions
and digests (`packages.json`), and run with their own libraries. apt verifies what it fetches by Debian's keys.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.errors import BuildError
from cluster.packages import KEYRING
from cluster.paths import build_cache, locked

SUITE = "unstable"
"""Stable releases have an older one."""
VERSION_MIN = (4, 2)
APT_SECONDS_MAX = 300.0
LOADER, LIBRARIES = "usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"
SETTINGS = """
Dir::State "{folder}";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/nonexistent";
APT::Install-Recommends "0";
"""


def ensure() -> Path:
    """A CRIU that is new enough, fetched where there is none yet.

    Raises:
        BuildError: there is none here, and none can be had.
    """
    machine = shutil.which("criu")
    if machine and is_new(machine):
        return Path(machine)
    with locked("criu"):
        return _cached() or _fetch()


def is_new(program: str) -> bool:
    """Whether it says of itself that it is of VERSION_MIN or newer."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
        found = re.search(r"^Version: (\d+)\.(\d+)", done.stdout, re.MULTILINE)
        return found is not None and (int(found[1]), int(found[2])) >= VERSION_MIN
    return False


def _cached() -> Path | None:
    whole = sorted(build_cache().glob("criu-*/packages.json"))
    return whole[-1].parent / "criu" if whole else None


def _fetch() -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BuildError("no CRIU 4.2 or newer on PATH, and no Debian to take it from")
    with tempfile.TemporaryDirectory(dir=build_cache(), prefix=".criu-") as name:
        folder = Path(name)
        packages = _download(folder)
        digests = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in packages}
        version = next(one.split("_")[1] for one in digests if one.startswith("criu_"))
        mark = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:12]
        target = build_cache() / f"criu-{version}-{mark}"
        _unpack(packages, folder / "whole", target)
        (folder / "whole/packages.json").write_text(json.dumps(digests, indent=1, sort_keys=True))
        shutil.rmtree(target, ignore_errors=True)
        (folder / "whole").rename(target)
    if not is_new(str(target / "criu")):
        raise BuildError(f"{target / 'criu'} does not run here, or is older than 4.2")
    return target / "criu"


def _download(folder: Path) -> list[Path]:
    for one in ("lists/partial", "cache/archives/partial"):
        (folder / one).mkdir(parents=True)
    (folder / "status").touch()
    site = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], {})
    mirrors = [line for line in site.split() if line.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise BuildError("apt knows no mirror of Debian to take CRIU from")
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirrors[0]} {SUITE} main\n")
    (folder / "apt.conf").write_text(SETTINGS.format(folder=folder))
    settings = {"APT_CONFIG": str(folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-qq"], settings)
    _run(["apt-get", "install", "-qq", "-y", "--download-only", "criu"], settings)
    return sorted((folder / "cache/archives").glob("*.deb"))


def _unpack(packages: list[Path], where: Path, target: Path) -> None:
    """Every package's files, and a command that runs CRIU with them once they lie in `target`."""
    root = where / "root"
    root.mkdir(parents=True)
    for one in packages:
        _run(["dpkg-deb", "-x", str(one), str(root)], {})
    final = target / "root"
    command = f"{final / LOADER} --library-path {final / LIBRARIES} {final / 'usr/sbin/criu'}"
    (where / "criu").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (where / "criu").chmod(0o755)


def _run(command: list[str], settings: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=APT_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
