"""Requests to the program at the far end of ssh, each over a connection of its own, and made again where one is cut.

Every request of ``program.py`` may be repeated, so that whoever asks need not know how far the last one came.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import IO, Any, TypeVar

from rollout.common.child_processes import signal_group
from rollout.errors import ConnectionLost, HostError, HostUnreachable
from rollout.remote.program import ANSWER
from rollout.remote.ssh import FAILED, MISSING, Ssh, explain

T = TypeVar("T")
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.14")
"""Where the program finds a Python to run in, in this order."""
PYTHON_MIN = (3, 9)
"""Of the program."""
NO_PYTHON = "there is no Python: install 3.11 or newer, or name one with --remote-python"
ANSWER_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 64 << 20
LINES_BEFORE_ANSWER_MAX = 1000
ERRORS_BYTES_MAX = 64 << 10
END_SECONDS_MAX = 30.0
PATIENCE_SECONDS = 900.0
"""How long a host that does not answer is tried again: a reboot is shorter."""
PAUSE_SECONDS_MAX = 30.0
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHost:
    """A machine behind ssh. ``python``: the one that the program runs in, in place of what is found there."""

    ssh: Ssh
    say: Callable[[str], None]
    """Told when a connection is lost."""
    python: str | None = None
    patience_seconds: float = PATIENCE_SECONDS

    @property
    def name(self) -> str:
        """As the ssh client knows it."""
        return self.ssh.address.host

    def look(self, script: str) -> str:
        """What a script of a POSIX shell prints there. Raises HostError; nothing is tried again."""
        with _talking(self.ssh, script) as talk, talk.ended_after(ANSWER_SECONDS_MAX):
            talk.close_input()
            said = talk.output.read(ANSWER_BYTES_MAX).decode(errors="replace")
            talk.require_well()
        return said

    def ask(
        self,
        verb: str,
        request: dict[str, Any],
        body: Callable[[], Iterable[bytes]] = tuple,
        *,
        seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> dict[str, Any]:
        """Its answer; ``body`` is what follows the request. Raises HostError with what the host says, and ConnectionLost."""
        with self._asked(verb, request, body, seconds_max) as (_, answer):
            return answer

    def read(self, verb: str, request: dict[str, Any]) -> Iterator[bytes]:
        """What follows its answer, as it comes: bytes of files, or another program's words. Raises as ``ask``."""
        with self._asked(verb, request) as (talk, _):
            while chunk := talk.output.read1(CHUNK):
                yield chunk
            talk.require_connected()

    def exit_code(self, verb: str, request: dict[str, Any], show: Callable[[bytes], None]) -> int:
        """Show what a program there says, to its end; what it exits with. Raises as ``ask``."""
        with self._asked(verb, request) as (talk, _):
            for line in talk.output:
                show(line)
            talk.require_connected()
            return talk.process.returncode

    def again(self, action: Callable[[], T]) -> T:
        """Do something until no connection is cut in the middle of it, with growing pauses, as long as patience lasts."""
        patient_until, pause = time.monotonic() + self.patience_seconds, 1.0
        while True:
            began = time.monotonic()
            try:
                return action()
            except (ConnectionLost, HostUnreachable) as error:
                if time.monotonic() - began > PAUSE_SECONDS_MAX:  # it had gone well for a while
                    patient_until, pause = time.monotonic() + self.patience_seconds, 1.0
                if time.monotonic() + pause > patient_until:
                    raise
                self.say(f"{error}; trying again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    @contextlib.contextmanager
    def _asked(
        self,
        verb: str,
        request: dict[str, Any],
        body: Callable[[], Iterable[bytes]] = tuple,
        seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> Iterator[tuple[Talk, dict[str, Any]]]:
        """A connection whose request has been answered; what follows the answer is still to be read."""
        source = files("rollout.remote").joinpath("program.py").read_bytes()
        words = json.dumps({**request, "verb": verb}).encode() + b"\n"
        with _talking(self.ssh, launcher(self.python, len(source))) as talk:
            with talk.ended_after(seconds_max):
                talk.send((source, words))
                talk.send(body())
                talk.close_input()
                answer = talk.answer()
            yield talk, answer


def launcher(python: str | None, source_bytes: int) -> str:
    """The shell command that finds a Python and gives it the program, which are the first bytes of its input."""
    code = f"import sys; exec(compile(sys.stdin.buffer.read({source_bytes}), 'rollout', 'exec'))"
    candidates = " ".join(shlex.quote(one) for one in (python, *PYTHONS) if one)
    new = shlex.quote(f"import sys; sys.exit(sys.version_info < {PYTHON_MIN})")
    found = f'"$p" -c {new} > /dev/null 2>&1 < /dev/null && exec "$p" -c {shlex.quote(code)}'
    return f"for p in {candidates}; do {found}; done; exit {MISSING}"


class Talk:
    """One connection: the client's process, and what it says of itself."""

    def __init__(self, ssh: Ssh, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.output: Any = process.stdout
        self._input, self._errors, self._ssh = process.stdin, errors, ssh
        self._is_late = False

    def send(self, parts: Iterable[bytes]) -> None:
        """Write; where the other side has ended, its answer or its end says why."""
        with contextlib.suppress(BrokenPipeError):
            for part in parts:
                self._input.write(part)
            self._input.flush()

    def close_input(self) -> None:
        """Nothing more is sent."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def answer(self) -> dict[str, Any]:
        """The program's answer. Raises HostError with the host's name where it refuses."""
        for _ in range(LINES_BEFORE_ANSWER_MAX):
            line = self.output.readline(ANSWER_BYTES_MAX)
            if line.startswith(ANSWER):
                answer = json.loads(line[len(ANSWER) :])
                if "refused" in answer:
                    raise HostError(f"{self._ssh.address}: {answer['refused']}")
                return answer
            if not line:
                break
        self.require_well()
        raise HostError(f"{self._ssh.address}: the program there gave no answer")

    def require_connected(self) -> None:
        """Wait for the end. Raises ConnectionLost and its like where that was the client's own."""
        self.process.wait(END_SECONDS_MAX)
        if self.process.returncode == FAILED or self.process.returncode < 0:
            raise explain(self._ssh.address, self._words())

    def require_well(self) -> None:
        """Wait for the end. Raises HostError where it was no good one."""
        if self._is_late:
            raise HostError(f"{self._ssh.address}: no answer for too long: look what it does there")
        self.require_connected()
        if self.process.returncode == MISSING:
            raise HostError(f"{self._ssh.address}: {NO_PYTHON}")
        if self.process.returncode:
            why = self._words() or "it said nothing"
            raise HostError(
                f"{self._ssh.address}: the program there ended with {self.process.returncode}: {why}"
            )

    @contextlib.contextmanager
    def ended_after(self, seconds: float) -> Iterator[None]:
        """End the connection when a block takes longer."""
        timer = threading.Timer(seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """End what still runs of it; idempotent."""
        signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        self.close_input()
        self.output.close()

    def _end_late(self) -> None:
        self._is_late = True
        signal_group(self.process, signal.SIGKILL)

    def _words(self) -> str:
        self._errors.seek(0)
        return self._errors.read(ERRORS_BYTES_MAX).decode(errors="replace").strip()


@contextlib.contextmanager
def _talking(ssh: Ssh, command: str) -> Iterator[Talk]:
    with tempfile.TemporaryFile() as errors:
        talk = Talk(ssh, ssh.start(command, errors=errors), errors)
        try:
            yield talk
        finally:
            talk.end()
