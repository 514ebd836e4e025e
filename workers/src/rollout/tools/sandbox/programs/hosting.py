"""Process 1 of a sandbox that holds an agent: its door, its files before each command, and those that are read after it.

Read as text by ``rollout.tools.sandbox.bubblewrap``, beside ``inside.py`` whose functions it takes; never imported
outside. The door is a listening socket of this sandbox's own loopback, which is handed out: what connects to it in
here is answered out there, and nothing else is to be reached. In a sandbox pod ``in_pod.py`` opens the door instead.
"""

from __future__ import annotations

import base64
import os
import socket
import stat
import sys
from typing import Dict

sys.path.insert(0, "/run")
import inside  # pyrefly: ignore[missing-import] - found in the sandbox only

READ_BYTES_MAX = 4096
MOUNTS: Dict[str, str] = {}
"""Folders that are mounts of their own, and cannot be made anew: by the name that is used outside."""
BACKLOG = 64


def main() -> None:
    """Serve until the pipe closes."""
    limits = inside.read_frame()
    inside.be_first()
    open_door(limits["door"]["descriptor"], limits["door"]["port"])
    serve_all(limits)


def serve_all(limits: inside.Frame) -> None:
    """Say that this is up, and run what is asked for."""
    inside.write_frame({"ready": True})
    while True:
        request = inside.read_frame()
        if "argv" in request:  # what is told to stop may have ended just before
            serve(request, limits)


def serve(request: inside.Frame, limits: inside.Frame) -> None:
    """One command."""
    put(request["files"], request["emptied"])
    answer = inside.run(request, limits)
    answer["files"] = get(request["read"])
    inside.write_frame(answer)


def open_door(descriptor: int, port: int) -> None:
    """Listen inside, and hand the listening socket out: what connects to it in here is answered out there."""
    with socket.socket(fileno=descriptor) as out, socket.socket() as door:
        door.bind(("127.0.0.1", port))
        door.listen(BACKLOG)
        socket.send_fds(out, [b"x"], [door.fileno()])


def put(files: inside.Frame, emptied: list[str]) -> None:
    """Files by absolute path; folders of ``emptied`` are new, whatever stood in their place."""
    for folder in emptied:
        if folder in MOUNTS:
            clear(MOUNTS[folder])
            continue
        above = os.path.dirname(
            folder
        )  # in a pod a volume, whose rights nobody in there can change
        if os.stat(above).st_uid == os.geteuid():
            os.chmod(above, 0o700)
        if os.path.lexists(folder):
            os.rename(folder, "%s-%s" % (folder, os.urandom(8).hex()))
        os.mkdir(folder, 0o700)
    for name, data in files.items():
        path = find(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


def find(path: str) -> str:
    """Where a file lies: below a mount, where its folder is one."""
    for folder, mount in MOUNTS.items():
        if path.startswith(folder + "/"):
            return mount + path[len(folder) :]
    return path


def clear(folder: str) -> None:
    """Put what is in a mount out of sight; however deep it lies, that is one step. Nothing else runs by now."""
    aside = os.path.join(folder, "." + os.urandom(8).hex())
    os.mkdir(aside, 0o700)
    for one in list(os.scandir(folder)):
        if one.path != aside:
            if one.is_dir(follow_symlinks=False):
                os.chmod(one.path, 0o700)
            os.rename(one.path, os.path.join(aside, one.name))
    os.chmod(aside, 0)


def get(paths: list[str]) -> inside.Frame:
    """The first bytes of those that are plain files."""
    found = {}
    for path in paths:
        try:
            descriptor = os.open(find(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found[path] = base64.b64encode(os.read(descriptor, READ_BYTES_MAX)).decode()
        finally:
            os.close(descriptor)
    return found


if __name__ == "__main__":
    main()
