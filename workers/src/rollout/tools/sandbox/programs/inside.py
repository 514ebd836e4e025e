"""Process 1 of a sandbox: runs one command after the other for the tool outside, and nothing else of ours is in there.

Read as text by ``rollout.tools.sandbox.bubblewrap`` and run by the sandbox's own Python (3.9 or newer) with the
standard library alone; never imported. Being process 1 it cannot be killed or stopped from inside, and what it looks
at (memory, files, time) holds for all that the policy starts. Frames on both pipes: four bytes of length, then JSON.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import signal
import time
from typing import Any, Callable, Dict, Tuple

TICK_SECONDS = 0.02
REAP_SECONDS_MAX = 10.0
CHUNK_BYTES = 1 << 16
FRAME_BYTES_MAX = 8 << 20
WRITABLE = ("/box", "/tmp", "/dev/shm")
PR_SET_DUMPABLE = 4
NICENESS = 10
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM)
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/box",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}

libc = ctypes.CDLL(None, use_errno=True)

Frame = Dict[str, Any]
Streams = Tuple[int, int, int]
Starter = Callable[[Frame, Frame, Streams], int]


class KeptBytes:
    """The first and last bytes of a stream, and how many there were."""

    def __init__(self, bytes_max: int) -> None:
        self.head, self.tail, self.num = b"", b"", 0
        self.head_max = bytes_max * 3 // 4
        self.tail_max = bytes_max - self.head_max

    def take(self, data: bytes) -> None:
        """Keep what there is room for."""
        self.num += len(data)
        room = self.head_max - len(self.head)
        self.head += data[:room]
        if len(data) > room:
            self.tail = (self.tail + data[max(room, 0) :])[-self.tail_max :]

    def told(self) -> dict[str, Any]:
        """As it is sent."""

        def text(data: bytes) -> str:
            return base64.b64encode(data).decode()

        return {"head": text(self.head), "tail": text(self.tail), "num_bytes": self.num}


def main() -> None:
    """Serve until the pipe closes."""
    limits = read_frame()
    be_first()
    serve_commands(limits)


def fork(request: Frame, limits: Frame, streams: Streams) -> int:
    """The command, begun as a copy of this process; its process."""
    pid = os.fork()
    if pid == 0:
        become(request, limits, streams)
    return pid


def serve_commands(limits: Frame, start: Starter = fork) -> None:
    """Say that this is up, and run what is asked for; ``start`` begins a command."""
    write_frame({"ready": True})
    for _ in range(limits["commands"]):
        request = read_frame()
        write_frame(run(request, limits, start))


def be_first() -> None:
    """Be process 1 as those that it watches see it."""
    libc.signal(signal.SIGINT, None)  # heard from inside where it has a handler
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open("/dev/null", os.O_RDWR), 2)


def run(request: Frame, limits: Frame, start: Starter = fork) -> Frame:
    """One command, and the end of all that it started."""
    into, feed = os.pipe()
    out, outs = os.pipe()
    err, errs = os.pipe()
    pid = start(request, limits, (into, outs, errs))
    for descriptor in (into, outs, errs):
        os.close(descriptor)
    kept = {out: KeptBytes(limits["output_bytes"]), err: KeptBytes(limits["output_bytes"])}
    try:
        cause, status = watch(pid, feed, base64.b64decode(request["stdin"]), kept, request, limits)
        left = end_everything() if status is not None else 0
        if status is None:
            status = end_and_wait(pid)
        drain(kept)
    finally:
        os.close(out)
        os.close(err)
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    if cause == "exit" and code < 0:
        cause = "signal"
    return {
        "cause": cause,
        "code": code,
        "stdout": kept[out].told(),
        "stderr": kept[err].told(),
        "num_left": left,
    }


def become(request: Frame, limits: Frame, streams: Streams) -> None:
    """The child's side: bounded, then another program. Never returns."""
    try:
        os.setsid()
        for place, descriptor in enumerate(streams):
            os.dup2(descriptor, place)
        os.closerange(3, 4096)
        os.nice(NICENESS)
        bound(request, limits)
        os.chdir("/box")
        for number in DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        environment = {**ENVIRONMENT, **request.get("environment", {})}
        os.execve(request["argv"][0], request["argv"], environment)  # noqa: S606 - this is what it is for
    except BaseException as error:
        os.write(2, ("cannot run %r: %s\n" % (request["argv"][:1], error)).encode())
    finally:
        os._exit(127)


def bound(request: Frame, limits: Frame) -> None:
    """The kernel's limits of one process, which its children have too."""
    set_bounds({**bounds_of(limits), resource.RLIMIT_CPU: processor_seconds(request)})


def processor_seconds(request: Frame) -> int:
    """What one process of a command may take of a processor; the command's own deadline is earlier."""
    return int(request.get("processor_seconds", request["seconds"])) + 2


def bounds_of(limits: Frame) -> dict[int, int]:
    """Those that are the same for every command."""
    return {
        resource.RLIMIT_AS: 2 * limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["disk_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_STACK: 8 << 20,
    }


def set_bounds(bounds: dict[int, int]) -> None:
    """Set each, or what there is where that is less."""
    for name, wanted in bounds.items():
        hard = resource.getrlimit(name)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(name, (value, value))


class Feed:
    """The command's input, written as fast as it reads."""

    def __init__(self, descriptor: int, data: bytes, poll: select.poll) -> None:
        self.descriptor, self._data, self._poll = descriptor, data, poll
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLOUT)

    def give(self) -> None:
        """Write what the pipe takes; close it behind the last byte, or where nobody reads."""
        try:
            self._data = self._data[os.write(self.descriptor, self._data[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._data = b""
        if not self._data:
            self.close()

    def close(self) -> None:
        """Nothing more is written; idempotent."""
        if self.descriptor >= 0:
            self._poll.unregister(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1


def watch(
    pid: int, feed_to: int, data: bytes, kept: dict[int, KeptBytes], request: Frame, limits: Frame
) -> tuple[str, int | None]:
    """Until the command ends or is past a bound: which, and its exit status where it ended by itself."""
    deadline = time.monotonic() + request["seconds"]
    poll = select.poll()
    ended = os.pidfd_open(pid)
    for descriptor in (0, ended, *kept):
        poll.register(descriptor, select.POLLIN)
    feed = Feed(feed_to, data, poll)
    looked = time.monotonic()
    try:
        while time.monotonic() < deadline:
            if serve(poll, feed, kept):
                return "stopped", None
            status = reap(pid)
            if status is not None:
                return "exit", status
            if time.monotonic() - looked > TICK_SECONDS:
                cause = over(limits)
                if cause:
                    return cause, None
                looked = time.monotonic()
        return "time", None
    finally:
        feed.close()
        os.close(ended)


def serve(poll: select.poll, feed: Feed, kept: dict[int, KeptBytes]) -> bool:
    """What the pipes are ready for, waited for a tick; whether the command is to end now."""
    for descriptor, _ in poll.poll(TICK_SECONDS * 1000):
        if descriptor == 0:
            read_frame()  # ends this process where nobody waits for it any more
            return True
        if descriptor == feed.descriptor:
            feed.give()
        elif descriptor in kept and not take(descriptor, kept):
            poll.unregister(descriptor)
    return False


def take(descriptor: int, kept: dict[int, KeptBytes]) -> bool:
    """Read what is there; False at the end of the stream."""
    data = os.read(descriptor, CHUNK_BYTES)
    kept[descriptor].take(data)
    return bool(data)


def drain(kept: dict[int, KeptBytes]) -> None:
    """What the pipes still hold, now that nobody writes."""
    for descriptor in kept:
        os.set_blocking(descriptor, False)
        try:
            while take(descriptor, kept):
                pass
        except BlockingIOError:
            pass


def reap(pid: int) -> int | None:
    """Bury whoever ended; the exit status of ``pid`` when it did."""
    status = None
    while True:
        try:
            ended, said = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if ended == 0:
            return status
        if ended == pid:
            status = said


def over(limits: Frame) -> str | None:
    """Which bound all processes together are past: memory, files, or None."""
    used, files = 0, 0
    for folder in WRITABLE:
        told = os.statvfs(folder)
        used += (told.f_blocks - told.f_bfree) * told.f_frsize
        files += told.f_files - told.f_ffree
    if files > limits["files"]:
        return "files"
    room = limits["memory_bytes"] - used
    if room > 0 and sum(map(rss_bytes, others())) <= room:
        return None
    return "memory" if used + sum(map(pss_bytes, others())) > limits["memory_bytes"] else None


def others() -> list[str]:
    """The processes beside this one."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def rss_bytes(name: str) -> int:
    """Anonymous and shared memory of one process; pages of several processes count for each."""
    return field_bytes("/proc/%s/status" % name, ("RssAnon:", "RssShmem:"))


def pss_bytes(name: str) -> int:
    """The same with pages of several processes shared out among them, where it can be had."""
    try:
        return field_bytes("/proc/%s/smaps_rollup" % name, ("Pss_Anon:", "Pss_Shmem:"))
    except PermissionError:
        return rss_bytes(name)


def field_bytes(path: str, names: tuple[str, ...]) -> int:
    """A sum of fields in kB; 0 for a process that has just ended."""
    try:
        with open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names)) << 10
    except (FileNotFoundError, ProcessLookupError):
        return 0


def end_everything() -> int:
    """Kill whatever runs beside this process; how many there were."""
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return 0
    left = sum(map(is_alive, others()))
    deadline = time.monotonic() + REAP_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        reap(0)
        if not others():
            return left
        time.sleep(0.001)
    os._exit(1)  # something cannot be ended: the kernel ends it with this namespace


def is_alive(name: str) -> bool:
    """Whether a process runs: one that has ended and is not buried does not."""
    try:
        with open("/proc/%s/stat" % name) as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_and_wait(pid: int) -> int:
    """Kill everything; the status that ``pid`` ended with."""
    deadline = time.monotonic() + REAP_SECONDS_MAX
    os.kill(-1, signal.SIGKILL)
    while time.monotonic() < deadline:
        status = reap(pid)
        if status is not None:
            end_everything()
            return status
        time.sleep(0.001)
    os._exit(1)


def read_frame() -> Frame:
    """The next frame; ends this process at the end of the pipe."""
    size = int.from_bytes(read_exactly(4), "big")
    if size > FRAME_BYTES_MAX:
        os._exit(1)
    return json.loads(read_exactly(size).decode())


def read_exactly(size: int) -> bytes:
    """So many bytes of the pipe."""
    parts = []
    while size:
        data = os.read(0, min(size, CHUNK_BYTES))
        if not data:
            os._exit(0)
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def write_frame(message: Frame) -> None:
    """Send an answer."""
    data = json.dumps(message).encode()
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
