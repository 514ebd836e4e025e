"""A process of its own that ends without a word, or meets a full disk, at its k-th call, and what it leaves behind.

A call is a change of the file system, a statement of a ledger's file, or a request to a bucket.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path

import pytest
from snapshot_kit import open_at

from rollout.errors import RolloutError
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import SnapshotPlace, list_manifests
from rollout.snapshots.verifying import find_snapshot_damage

CHANGES = {"os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
REMOVALS = {"os.remove", "os.rmdir"}
"""Which a full disk lets pass."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED, FAILED, REFUSED = 9, 7, 5
CALLS_MIN, CALLS_MAX = 3, 700
"""Of one operation; a durable store makes 256 folders with its first object."""
ALL_OR_SOME = pytest.mark.parametrize(
    "stride", [11, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "every call"]
)

Fault = Callable[[str], None]
"""What happens at a call, by its name."""


def killed_at(call: int, operation: Callable[[], object]) -> bool:
    """Whether ``operation``, in a child of this process, was killed at its call number ``call``; False: it had ended."""
    code, _ = in_child(call, operation, lambda _: os._exit(KILLED))
    assert code in {0, KILLED}, f"the child failed with {code}"
    return code == KILLED


def refused_at(call: int, operation: Callable[[], object], errno: int) -> str | None:
    """The words in which ``operation`` refused when the file system failed at ``call`` and ever after; None: it had ended."""

    def fail(event: str) -> None:
        if errno != ENOSPC or event not in REMOVALS:
            raise OSError(errno, os.strerror(errno))

    code, words = in_child(call, operation, fail)
    assert code in {0, REFUSED}, f"the child failed with {code}"
    return words if code == REFUSED else None


def every_call(prepare: Callable[[int], Callable[[], object]], stride: int = 1) -> Iterator[int]:
    """Kill what ``prepare`` gives at call 0, 1, 2, ... until it ends by itself; the call, after each."""
    for call in range(0, CALLS_MAX, stride):
        if not killed_at(call, prepare(call)):
            assert call >= CALLS_MIN
            return
        yield call
    raise AssertionError(f"more than {CALLS_MAX} calls")


def in_child(call: int, operation: Callable[[], object], fault: Fault) -> tuple[int, str]:
    """How a child ended that met ``fault`` at a call and at every later one, and what it said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            _meet_at(call, fault)
            operation()
            code = 0
        except RolloutError as error:
            os.write(writer, str(error).encode()[:4000])
            code = REFUSED
        except BaseException:  # noqa: BLE001 - a child of a test says what happened, and ends
            traceback.print_exc()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        words = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), words


def whole_snapshots(folder: Path) -> set[str]:
    """The ids that are listed, of which each is verified to be whole."""
    return whole_in(open_at(folder))


def whole_in(place: SnapshotPlace) -> set[str]:
    """The same of any place."""
    found = set()
    for one in list_manifests(place.named):
        assert isinstance(one, Manifest), one
        assert list(find_snapshot_damage(one, place.store)) == []
        found.add(one.id)
    return found


def _meet_at(call: int, fault: Fault) -> None:
    left = call

    def count(event: str) -> None:
        nonlocal left
        if left <= 0:
            fault(event)
        left -= 1

    def hook(event: str, args: tuple) -> None:
        if event in CHANGES or (event == "open" and args[2] & WRITES):
            count(event)

    flush, connect = os.fsync, sqlite3.connect

    def fsync(handle: int) -> None:
        count("os.fsync")
        flush(handle)

    def counted(*args, **more):
        opened = connect(*args, **more)
        opened.set_trace_callback(lambda _: count("sqlite3"))
        return opened

    os.fsync, sqlite3.connect = fsync, counted
    _count_requests(count)
    sys.addaudithook(hook)


def _count_requests(count: Fault) -> None:
    """Of the clients of buckets, where they are loaded."""
    for module, kind in (
        ("requests.adapters", "HTTPAdapter"),
        ("botocore.httpsession", "URLLib3Session"),
    ):
        if module in sys.modules:
            found = getattr(sys.modules[module], kind)

            def send(self, *args, _send=found.send, **more):
                count("request")
                return _send(self, *args, **more)

            found.send = send
