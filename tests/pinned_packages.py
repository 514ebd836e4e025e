"""Packages of PyPI and npm for one test, pinned, installed once into the user's cache under the digest of their pins.

Nothing of them is in the tree or in the environment of the tests: who needs them puts the folder on a subprocess's path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

INSTALL_SECONDS = 300.0
SDK_BEFORE = ("tinker==0.36.0",)
COOKBOOK = (
    "tinker-cookbook==0.6.1",
    "antlr4-python3-runtime==4.13.2",
    "blobfile==3.3.0",
    "chz==0.4.0",
    "latex2sympy2-extended==1.11.0",
    "lxml==6.1.3",
    "math-verify==0.9.0",
    "pycryptodomex==3.24.2",
    "pylatexenc==2.11",
    "pyrage==1.4.0",
    "termcolor==3.3.0",
    "tml-renderers==0.2.1",
)
"""The recipes, and what they need beside the environment of the tests."""


def _read_pins(name: str) -> tuple[str, ...]:
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


LITELLM = _read_pins("litellm.pins.txt")
"""Its SDK and its proxy, and all that they need: other versions than those of the environment of the tests."""
VERIFIERS = _read_pins("verifiers.pins.txt")
"""Its loop and its client, likewise."""


def installed(pins: Sequence[str]) -> tuple[Path | None, str]:
    """The folder that holds exactly these, or None and why they cannot be had."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = _installer()
    command = None if python is None else [*python, "--no-deps", "--target"]
    return _once(version, pins, command)


def installed_modules(pins: Sequence[str]) -> tuple[Path | None, str]:
    """The same of npm: the folder whose ``node_modules`` has these, and what they need."""
    npm = shutil.which("npm")
    words = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]
    return _once("npm", pins, None if npm is None else [npm, *words])


def _once(kind: str, pins: Sequence[str], command: Sequence[str] | None) -> tuple[Path | None, str]:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout" / "packages"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / blake3("\n".join([kind, *sorted(pins)]).encode()).hexdigest()[:32]
    with (base / f"{folder.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, ""
        if command is None:
            return None, f"nothing of {kind} is here to install {pins[0]} with"
        return _install(command, pins, folder)


def _install(command: Sequence[str], pins: Sequence[str], folder: Path) -> tuple[Path | None, str]:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        done = subprocess.run(
            [*command, str(part), *pins],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, f"{pins[0]} was not installed within {INSTALL_SECONDS:g} s"
    if done.returncode != 0:
        return None, f"{pins[0]} cannot be had: {done.stderr.strip().splitlines()[-1][:200]}"
    part.rename(folder)
    return folder, ""


def _installer() -> list[str] | None:
    """uv, or a pip of the same Python: wheels are of one."""
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "-q", "--python", sys.executable]
    wanted = f"python {sys.version_info.major}.{sys.version_info.minor})"
    for name in [sys.executable, "python3", f"python3.{sys.version_info.minor}"]:
        asked = [name, "-m", "pip"]
        try:
            done = subprocess.run([*asked, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and wanted in done.stdout:
            return [*asked, "install", "-q"]
    for pip in _pips():
        done = subprocess.run([pip, "--version"], capture_output=True, text=True)
        if done.returncode == 0 and wanted in done.stdout:
            return [pip, "install", "-q"]
    return None


def _pips() -> list[str]:
    found = [shutil.which(name) for name in ("pip", "pip3")]
    return [one for one in found if one]
