"""One process of a plugin: started in its folder with a socket of its own, kept by ``keeper``, and ended with all it started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rollout.plugins.sidecar.manifest import PluginFolder

SOCKET = "ROLLOUT_PLUGIN_SOCKET"
KEEPER = Path(__file__).with_name("keeper.py")
NEEDED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""What programs need to run at all; what else stands in our environment is not handed on."""
SAID_BYTES = 2000
END_SECONDS = 15.0


class PluginProcess:
    """A process that has been started. ``end`` when done, whatever happened."""

    def __init__(self, plugin: PluginFolder) -> None:
        self._plugin = plugin
        self._place = tempfile.mkdtemp(prefix="rollout-plugin-")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end
        manifest = plugin.manifest
        program, *arguments = manifest.command
        command = [sys.executable if program == "python" else program, *arguments]
        memory_bytes = (manifest.memory_mib or 0) << 20
        self._keeper = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(KEEPER),
                str(os.getpid()),
                str(memory_bytes),
                *command,
            ],
            cwd=plugin.folder,
            env=_environment(plugin, self.socket, os.environ),
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )

    @property
    def socket(self) -> str:
        """Path of its Unix socket, in a folder that is this user's alone."""
        return f"{self._place}/socket"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._keeper.poll() is None

    def has_ended(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        try:
            self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int:
        """Of its keeper, whose child runs it."""
        return self._keeper.pid

    def meet(self) -> None:
        """It is ours, and known by that."""

    def answered(self) -> bool:
        """An answer at its socket is its own, whether it has ended since or not."""
        return True

    def describe_end(self) -> str:
        """How it ended, and what it wrote last."""
        code = self._keeper.poll()
        size = os.fstat(self._said.fileno()).st_size
        start = max(0, size - SAID_BYTES)
        words = os.pread(self._said.fileno(), SAID_BYTES, start).decode(errors="replace").strip()
        how = "it runs" if code is None else f"exit code {code}"
        return f"{how}; it wrote: {words}" if words else how

    def end(self) -> None:
        """Have it end, and wait; idempotent."""
        if self._said.closed:
            return
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._said.close()
        shutil.rmtree(self._place, ignore_errors=True)


def _environment(plugin: PluginFolder, socket: str, ours: Mapping[str, str]) -> dict[str, str]:
    handed = {name: ours[name] for name in (*NEEDED, *plugin.manifest.env) if name in ours}
    return {**handed, SOCKET: socket, "PYTHONUNBUFFERED": "1"}
