"""Opens a run's data with its author's code and environment, and gives rows: ``python -m rollout.entrypoints.rows``.

Holds no credential of the platform: no ledger, no token, no key. Whoever asks (the coordinator) has the other end of
a socket and gets data. With ``--descriptor`` it serves one connection and ends with it; with ``--socket`` it listens,
and starts such a process for each connection: the container of its own in a coordinator's pod.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from rollout.common.stacks import show_threads_on_signal
from rollout.plugins.guard import adopt, bound_memory, drop_rights, guard, hide_memory, sweep
from rollout.plugins.network import close_network

SOCKET_MODE = 0o660
"""For the group that the pod's volumes belong to: the coordinator has it, too."""
BACKLOG = 1
ACCEPT_SECONDS = 0.5


def main() -> int:
    """Serve one connection, or listen for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--descriptor", type=int, help="a connected socket that was inherited")
    place.add_argument("--socket", type=Path, help="where to listen")
    parser.add_argument(
        "--network",
        choices=("none", "pod"),
        default="none",
        help="of what listens: none (the default), or the pod's, as the runtime allows it",
    )
    parser.add_argument("--memory-bytes-max", type=int, default=None, help="of each process")
    arguments = parser.parse_args()
    show_threads_on_signal()
    if arguments.socket is not None:
        if arguments.network == "none":
            _go_offline()
        return listen(arguments.socket)
    line = arguments.descriptor
    return guard(line, lambda: serve(line, arguments.memory_bytes_max))


def _go_offline() -> None:
    """Close the network for this process and each that it starts; libraries of hubs look into their caches at once."""
    close_network()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def serve(line: int, memory_bytes_max: int | None) -> None:
    """Answer until the other end closes. Runs the author's code."""
    from rollout.common.frames import read_frame, write_frame
    from rollout.entrypoints.row_desk import RowDesk
    from rollout.plugins.row_messages import Question, fail

    drop_rights()
    if memory_bytes_max is not None:
        bound_memory(memory_bytes_max)
    os.set_blocking(line, True)
    fcntl.fcntl(line, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    desk = RowDesk()
    while True:
        try:
            question = read_frame(line, Question)
        except EOFError:
            return
        answer = desk.answer(question)
        try:
            write_frame(line, answer)
        except BrokenPipeError:
            return
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            write_frame(line, fail(error))


def listen(path: Path) -> int:
    """One process for each connection, what the earlier one left ended first; until SIGTERM."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    hide_memory()
    adopt()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(SOCKET_MODE)
        listener.listen(BACKLOG)
        listener.settimeout(ACCEPT_SECONDS)
        while not told.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            sweep()
            with connection:
                _start(connection)
    sweep()
    return 0


def _start(connection: socket.socket) -> None:
    from rollout.plugins.row_host import rows_command

    number = connection.fileno()
    os.set_blocking(number, True)
    subprocess.Popen(
        rows_command(number),
        stdin=subprocess.DEVNULL,
        pass_fds=(number,),
        start_new_session=True,
    )


if __name__ == "__main__":
    sys.exit(main())
