"""The fork server: ``python -m rollout.entrypoints.fork_server --channel FD``.

Imports what the modules import that it is told of, says so on the channel, and then forks one process per order
(``rollout.supervisor.fork_server`` asks). It refuses to do anything else: no thread, no tensor, no device
and no random number is touched here, so a process that it forks is what ``python -m MODULE`` would be
after its imports. Each is forked by an intermediate that ends at once, so that the kernel gives it to
the asker, which is a subreaper at that moment: a true child, with its exit status and its ties.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollout.common import parent_death
from rollout.common.stacks import show_threads_on_signal
from rollout.supervisor import fork_server

ORDER_DESCRIPTORS_MAX = 16
HIGH_DESCRIPTOR = 200
"""What arrives is moved here first, out of the way of the numbers that it shall have."""
ARG_START, ARG_END = 47, 48
"""Positions in ``/proc/self/stat``, the first field being 0."""
FIELDS_BEFORE = 2
"""A process's id and its name, which may hold blanks, come before the fields that can be split."""
PRELOADED = {"rollout.entrypoints.actor": ("rollout.engines.embedded.engine",)}
"""What an entry point imports once it runs."""


def main() -> None:
    """Serve until the asker closes the channel; it may also end us, or die, which does."""
    show_threads_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="a socket's descriptor")
    parser.add_argument("--room", help="room for the command lines of what is forked")
    with socket.socket(fileno=parser.parse_args().channel) as channel:
        preload(json.loads(channel.recv(fork_server.MODULES_BYTES_MAX)))
        serve(channel)


def preload(modules: Sequence[str]) -> None:
    """Import what these entry points need; they themselves run as ``__main__`` later, as ever."""
    for name in modules:
        importlib.import_module(name)
        del sys.modules[name]
        for further in PRELOADED.get(name, ()):
            importlib.import_module(further)
    gc.collect()
    gc.freeze()  # what is shared with the forked stays shared: no collection touches it


def serve(channel: socket.socket) -> None:
    """Fork what is ordered, one after the other. Raises RuntimeError when a thread runs here."""
    channel.send(fork_server.READY)
    while True:
        body, descriptors, *_ = socket.recv_fds(channel, 64, ORDER_DESCRIPTORS_MAX)
        if not body:
            return
        if threading.active_count() > 1:
            raise RuntimeError(f"a fork of several threads is no process: {threading.enumerate()}")
        pid = fork_apart(channel, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(pid).encode())


def fork_apart(channel: socket.socket, descriptors: list[int]) -> int:
    """The id of a process that is no child of ours but of whoever reaps our orphans."""
    here, there = socket.socketpair()
    intermediate = os.fork()
    if intermediate == 0:
        if os.fork():
            os._exit(0)
        here.close()
        channel.close()
        _become_or_exit(there, descriptors)
    there.close()
    with here:
        pid = int(here.recv(32))
        os.waitpid(intermediate, 0)  # from now on it has its parent
        here.send(fork_server.READY)
    return pid


def _become_or_exit(there: socket.socket, descriptors: list[int]) -> None:
    """Live and end as a process of its own: nothing of the server's stack is returned to."""
    code = 1
    try:
        with there:
            there.send(str(os.getpid()).encode())
            there.recv(1)
        code = _end(partial(become, descriptors))
    finally:
        os._exit(code)


def _end(live: Callable[[], None]) -> int:
    """The exit code of a whole life, and what the interpreter does at the end of one."""
    code = 1
    try:
        live()
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the outermost frame of this process, which says what it died of
        traceback.print_exc()
    # pyrefly: ignore[missing-attribute] - the interpreter's own end: what it does to threads has no public name
    threading._shutdown()  # noqa: SLF001 - likewise
    atexit._run_exitfuncs()  # noqa: SLF001 - likewise
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _exit_code(end: SystemExit) -> int:
    """As the interpreter takes it."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def become(descriptors: list[int]) -> None:
    """Take the order's session, files, environment and folder, and run its module."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) for one in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    with os.fdopen(high[0], "rb") as file:
        order = fork_server.Order(**json.load(file))
    os.setsid()
    place(high[1:], order.numbers)
    os.environ.clear()
    os.environ.update(order.environment)
    enter(order.folder)
    draw_anew()
    words = order.words
    set_title(parent_death.tied_argv(*words, parent=order.parent))
    for _ in range(order.passes_on):
        fork_server.INHERITED.append(pass_on(order.environment))
    gc.enable()
    parent_death.main(["--parent", str(order.parent), *words])


def place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files the numbers that they shall have; nothing else above 2 stays open with them."""
    for descriptor, number in zip(descriptors, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)


def enter(folder: str) -> None:
    """Go there, and import from there: ``python -m`` puts its folder first, and ours was the server's."""
    ours = str(Path.cwd())
    os.chdir(folder)
    if not sys.flags.safe_path and sys.path[:1] == [ours]:
        sys.path[0] = str(Path.cwd())


def draw_anew() -> None:
    """Random numbers that nobody has seeded differ from process to process, as after any start."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # devices' generators are made, and drawn, when one is first used


def pass_on(environment: Mapping[str, str]) -> fork_server.ForkServer:
    """A fork server for this process, which is about to run: forked before anything of it is there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asker = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while fork_server.INHERITED:
            fork_server.INHERITED.pop().forget()
        _serve_or_exit(theirs, asker)
    theirs.close()
    process = fork_server.ForkedProcess(pid)
    return fork_server.ForkServer(process, ours, environment=environment)


def set_title(words: Sequence[str]) -> None:
    """Show these words as our command line, as far as the first one had room: ``ps`` shows what would have started a forked process.

    Linux keeps a process's arguments where its stack began (proc(5), ``arg_start`` and ``arg_end``). Anywhere else nothing is changed.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return
    fields = stat.read_text().rpartition(")")[2].split()
    start, end = (int(fields[index - FIELDS_BEFORE]) for index in (ARG_START, ARG_END))
    room = end - start
    title = b"\0".join(word.encode() for word in words)[: room - 1]
    ctypes.memmove(start, title.ljust(room, b"\0"), room)


def _serve_or_exit(channel: socket.socket, asker: int) -> None:
    try:
        parent_death.die_with_parent(asker)
        os.setsid()
        serve(channel)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
