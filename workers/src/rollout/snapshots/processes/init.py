"""Process 1 of a cell: starts a program, or goes on with its image, reaps what is left over, and passes on what it prints.

    supervisor -> keeper (in the machine's namespaces) -> process 1 of a new namespace of processes -> the program

The keeper dies with who started it, process 1 with the keeper, and all others with process 1. The program cannot use
io_uring, which no image can hold, and prints into a pipe, whose other end is not of the image. Ids of processes below
``FIRST_PID`` are left free for what restores them. Exits as the program does; 128 and its signal where one ended it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rollout.common.parent_death import die_with_parent
from rollout.snapshots.processes.denial import deny_io_uring
from rollout.snapshots.processes.point import write_whole

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_REC, MS_PRIVATE, MS_PLAIN = 0x4000, 0x40000, 0xE
"""MS_PLAIN: no set-user-id, no devices, no programs, as /proc always is."""
FIRST_PID = 1000
STARTED, KEEPER, IMAGED = "started.json", "keeper.json", "imaged.json"
"""What is told of the program, of who keeps it, and by the image that it goes on from."""
DUMP = "dump"
"""The folder in which a dump lies while it is made, and CRIU works while it restores."""
CANNOT_START, RESTORE_FAILED = 127, 125
PUMP_BYTES, DRAIN_SECONDS = 1 << 16, 1.0
GUEST_SECONDS_MAX, POLL_SECONDS = 600.0, 0.02


def main(folder: Path, mode: str, argv: Sequence[str]) -> None:
    """Be the keeper. ``run``: of a program; ``restore``: of what this CRIU command brings back."""
    die_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWPID | CLONE_NEWNS), "new namespaces")
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG; the keeper has no id in here
        _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
        _check(libc.mount(b"proc", b"/proc", b"proc", MS_PLAIN, None), "/proc")
        os._exit(_keep_house(folder, mode, argv))
    write_whole(folder / KEEPER, json.dumps({"keeper": keeper, "init": child}))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: os.kill(child, got))
    sys.exit(os.waitstatus_to_exitcode(_wait_for(child)))


def _keep_house(folder: Path, mode: str, argv: Sequence[str]) -> int:
    """Until the program has ended; its exit code."""
    reading, writing = os.pipe()
    start = _start if mode == "run" else _restore
    root = start(folder, argv, writing)
    if root is None:
        return RESTORE_FAILED
    write_whole(folder / STARTED, json.dumps({"root": root, "pipe": os.fstat(writing).st_ino}))
    os.close(writing)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(root, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    pump = threading.Thread(target=_pump, args=(reading,), daemon=True)
    pump.start()
    code = os.waitstatus_to_exitcode(_wait_for(root))
    _wait_for_guests()
    pump.join(DRAIN_SECONDS)
    return code if code >= 0 else 128 - code


def _start(_folder: Path, argv: Sequence[str], writing: int) -> int:
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(FIRST_PID))
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.closerange(3, 1 << 12)
        deny_io_uring()
        os.execvp(argv[0], list(argv))  # noqa: S606 - that is what it is for
    except OSError as error:
        os.write(2, f"error: {argv[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_START)


def _restore(folder: Path, argv: Sequence[str], writing: int) -> int | None:
    imaged = json.loads((folder / IMAGED).read_text())
    inherit = ["--inherit-fd", f"fd[{writing}]:pipe:[{imaged['pipe']}]"]
    done = subprocess.run(
        [*argv, *inherit],
        cwd=folder / DUMP,
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return int(imaged["root"]) if done.returncode == 0 else None


def _wait_for(pid: int) -> int:
    """Reap whoever ends until this one has; its status."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def _wait_for_guests() -> None:
    """Until nobody is here who came in from outside: CRIU, which ends the program with its image and is not done by then."""
    deadline = time.monotonic() + GUEST_SECONDS_MAX
    while time.monotonic() < deadline and any(map(_is_guest, Path("/proc").glob("[0-9]*/stat"))):
        time.sleep(POLL_SECONDS)


def _is_guest(stat: Path) -> bool:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    state, parent = fields[0], fields[1]
    return stat.parent.name != "1" and parent == "0" and state != "Z"


def _pump(reading: int) -> None:
    while data := os.read(reading, PUMP_BYTES):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def _check(result: int, what: str) -> None:
    if result != 0:
        words = os.strerror(ctypes.get_errno())
        sys.stderr.write(f"error: {what}: {words}; images of processes need root\n")
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
