"""A process of its own that ends without a word at its k-th change of the file system, and what it leaves behind."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from snapshot_kit import open_at

from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import list_manifests
from rollout.snapshots.verifying import find_snapshot_damage

CHANGES = {"os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED, FAILED = 9, 7
CALLS_MIN, CALLS_MAX = 3, 400


def killed_at(call: int, operation: Callable[[], object]) -> bool:
    """Whether ``operation``, in a child of this process, was killed at its call number ``call``; False: it had ended."""
    child = os.fork()
    if child == 0:
        try:
            _die_at(call)
            operation()
        except BaseException:  # noqa: BLE001 - a child of a test says what happened, and ends
            traceback.print_exc()
            os._exit(FAILED)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, KILLED}, f"the child failed with {code}"
    return code == KILLED


def every_call(prepare: Callable[[int], Callable[[], object]]) -> Iterator[int]:
    """Kill what ``prepare`` gives at call 0, 1, 2, ... until it ends by itself; the call, after each."""
    for call in range(CALLS_MAX):
        if not killed_at(call, prepare(call)):
            assert call >= CALLS_MIN
            return
        yield call
    raise AssertionError(f"more than {CALLS_MAX} calls")


def whole_snapshots(folder: Path) -> set[str]:
    """The ids that are listed, of which each is verified to be whole."""
    place, found = open_at(folder), set()
    for one in list_manifests(place.named):
        assert isinstance(one, Manifest), one
        assert list(find_snapshot_damage(one, place.store)) == []
        found.add(one.id)
    return found


def _die_at(call: int) -> None:
    left = call

    def count() -> None:
        nonlocal left
        if left == 0:
            os._exit(KILLED)
        left -= 1

    def hook(event: str, args: tuple) -> None:
        if event in CHANGES or (event == "open" and args[2] & WRITES):
            count()

    flush = os.fsync

    def fsync(handle: int) -> None:
        count()
        flush(handle)

    os.fsync = fsync
    sys.addaudithook(hook)
