"""CRIU as the maker of images: found, asked for its version, tried on this kernel, and run inside the cell it is to image.

Needs 4.2: older ones fail on TCP sockets of kernels since 6.13. Run from within the cell's namespaces, so that no namespace is
part of an image and the ids of its processes are free in the cell that it is restored in.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rollout.errors import DumpCutOff, SnapshotRefused
from rollout.snapshots.processes.contract import (
    REFUSED,
    NoSnapshotter,
    ProcessSnapshotter,
    Support,
    Tree,
)

VARIABLE = "ROLLOUT_CRIU"
VERSION_MIN = (4, 2)
ASK_SECONDS_MAX, DUMP_SECONDS_MAX = 30.0, 600.0
DUMP_LOG = "dump.log"
GHOST_BYTES_MAX = "256M"
"""Files that are open and have no name any more are part of the image, up to this size each."""
SHARED = (
    "--ext-unix-sk",
    "--tcp-established",
    "--link-remap",
    "--file-locks",
    "--ghost-limit",
    GHOST_BYTES_MAX,
    "-v2",
)
LOG_LINES_MAX = 6
WAY, HERE = "criu", "."
LOOKS_GOOD = "Looks good"
GAVE_UP = "Dumping FAILED"
"""The last line of a dump that CRIU gave up, all that it had stopped going on."""
HARMED = "the program may be left stopped, or without its connections: end it"


def choose_snapshotter(way: str, environment: Mapping[str, str]) -> ProcessSnapshotter:
    """That of a name: ``criu``, ``none``. Raises SnapshotRefused for the ways that are not taken, and for unknown ones."""
    if way in REFUSED:
        raise SnapshotRefused(f"{way}: not taken: {REFUSED[way]}; take criu")
    if way == "none":
        return NoSnapshotter(reason="they were turned off (none)")
    if way != WAY:
        raise SnapshotRefused(f"{way!r}: expected criu or none")
    return find_criu(environment)


def find_criu(environment: Mapping[str, str]) -> ProcessSnapshotter:
    """CRIU of ``ROLLOUT_CRIU``, else on PATH; one that refuses, and says why, where there is none."""
    if sys.platform != "linux":
        return NoSnapshotter(reason=f"CRIU is of Linux, and this is {sys.platform}")
    given = environment.get(VARIABLE)
    found = shutil.which(given or "criu", path=environment.get("PATH"))
    if found is None:
        where = f"{VARIABLE}={given} is no program" if given else "criu is not on PATH"
        return NoSnapshotter(
            reason=f"{where}: install CRIU 4.2 or newer, or name it with {VARIABLE}"
        )
    return Criu(Path(found))


class Criu:
    """CRIU at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def support(self, *, tried: bool = True) -> Support:
        """As the contract says."""
        version = self._ask("--version")
        numbers = parse_version(version)
        if numbers is None:
            return Support(reason=f"{self._path} does not tell its version: {_last(version)}")
        shown = ".".join(map(str, numbers))
        if numbers < VERSION_MIN:
            return Support(reason=f"{self._path} is CRIU {shown}: 4.2 or newer is needed")
        if os.geteuid() != 0:
            return Support(reason=f"CRIU {shown} needs root to make and restore images")
        checked = self._ask("check") if tried else LOOKS_GOOD
        if LOOKS_GOOD not in checked:
            return Support(reason=f"CRIU {shown} does not work on this kernel: {_last(checked)}")
        return Support(version=shown)

    def dump(self, tree: Tree, folder: Path, *, stop: bool) -> None:
        """As the contract says. In a session of its own: who asked may be killed, and the tree goes on all the same."""
        argv = [
            *("nsenter", "--target", str(tree.init), "--pid", "--mount", "--"),
            *(str(self._path), "dump", "--tree", str(tree.root), "--images-dir", str(folder)),
            *("--log-file", DUMP_LOG, *SHARED, *(() if stop else ("--leave-running",))),
        ]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DUMP_SECONDS_MAX,
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            raise SnapshotRefused(f"no image was made: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise DumpCutOff(f"no image was made: {error}; {HARMED}") from error
        if done.returncode != 0 and was_cut_off(folder / DUMP_LOG):
            raise DumpCutOff(f"no image was made: CRIU was ended in the middle of it; {HARMED}")
        if done.returncode != 0:
            raise SnapshotRefused(
                f"no image was made, and the program goes on: CRIU: {read_errors(folder / DUMP_LOG)}"
            )

    def restore_argv(self) -> list[str]:
        """As the contract says. In the folder, as the path of a socket in it may be too long for CRIU."""
        return [
            *(str(self._path), "restore", "--stream", "--images-dir", HERE),
            *("--log-file", "restore.log", *SHARED, "--restore-detached", "--restore-sibling"),
        ]

    def _ask(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [str(self._path), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASK_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return done.stdout + done.stderr


def parse_version(text: str) -> tuple[int, ...] | None:
    """The numbers of ``Version: 4.2.1``; None where there are none."""
    found = re.search(r"^Version: (\d+(?:\.\d+)+)", text, re.MULTILINE)
    return tuple(map(int, found[1].split("."))) if found else None


def was_cut_off(log: Path) -> bool:
    """Whether a CRIU that failed had begun, and did not come to the end that it comes to by itself."""
    try:
        return GAVE_UP not in log.read_text(errors="replace")
    except OSError:
        return False


def read_errors(log: Path) -> str:
    """What CRIU says went wrong: its last lines of errors."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    errors = [line.partition("Error ")[2] for line in lines if "Error " in line]
    own = [line for line in errors if "RLIMIT_NOFILE" not in line] or errors
    return "; ".join(own[:LOG_LINES_MAX]) or _last("\n".join(lines))


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it says nothing"
