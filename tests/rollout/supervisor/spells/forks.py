"""Forks what a process would start, for processes of tests that have been forked themselves, and for tests."""

import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rollout.supervisor.fork_server import FORKED, ForkServer, ForkServerFailed

WARM = FORKED | {
    "rollout",
    "rollout.entrypoints.coordinator",
    "rollout.entrypoints.fork_server",
    "rollout.entrypoints.prepare",
    "rollout.entrypoints.resolve",
    "rollout.entrypoints.serving.embedded",
}
PASSED_ON = {"rollout": 2}
"""Servers of its own: one for its run, one for what it starts itself."""
TIE = 5
"""Words of ``tied_argv`` before the module."""
LATE = ("ROLLOUT_", "CUDA_VISIBLE_DEVICES", "AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "MY_")


class Forks:
    """``subprocess``, but what is tied to us and named in ``WARM`` is forked by a server, where that comes to the same.

    ``environment`` is what libraries have read; variables that begin as ``late`` says are read when they are needed.
    """

    def __init__(
        self, server: ForkServer, environment: Mapping[str, str], late: tuple[str, ...] = ()
    ) -> None:
        self._server, self._environment = server, dict(environment)
        self._late = (*LATE, *late)
        self._one_at_a_time = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, argv: Sequence[str], **given: Any) -> Any:
        """A process, forked where that comes to the same."""
        words = argv[TIE:]
        if words[0] in WARM and self._serves(given["env"]):
            try:
                return self._fork(words, **given)
            except ForkServerFailed:
                pass  # nothing was started
        return subprocess.Popen(argv, **given)

    def _serves(self, environment: Mapping[str, str]) -> bool:
        """Libraries have read ours: variables may be missing, not differ."""
        return all(
            self._environment.get(name) == value
            for name, value in environment.items()
            if not name.startswith(self._late)
        )

    def _fork(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> Any:
        assert start_new_session, "every fork leads a session"
        theirs: dict[int, int] = {}
        ours: dict[int, IO[bytes]] = {}
        for number, asked in enumerate((stdin, stdout, stderr)):
            theirs[number] = self._end_of(number, asked, theirs, ours)
        files = theirs | {one: one for one in pass_fds}
        try:
            with self._one_at_a_time:
                while not self._server.is_ready():
                    select.select([self._server.descriptor], [], [])
                process: Any = self._server.fork(
                    words, environment=env, files=files, passes_on=PASSED_ON.get(words[0], 0)
                )
        except ForkServerFailed:
            for one in ours.values():
                one.close()
            raise
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)
        process.args = tuple(words)
        process.stdin, process.stdout, process.stderr = map(ours.get, range(3))
        return process

    def _end_of(
        self,
        number: int,
        asked: int | IO[bytes],
        theirs: dict[int, int],
        ours: dict[int, IO[bytes]],
    ) -> int:
        """An open file of the process, to be closed here; our end of a pipe goes to ``ours``."""
        if asked == subprocess.PIPE:
            read, write = os.pipe()
            ours[number] = os.fdopen(read, "rb") if number else os.fdopen(write, "wb")
            return write if number else read
        if asked == subprocess.DEVNULL:
            return os.open(os.devnull, os.O_RDWR)
        if asked == subprocess.STDOUT:
            return os.dup(theirs[1])
        return os.dup(asked if isinstance(asked, int) else asked.fileno())
