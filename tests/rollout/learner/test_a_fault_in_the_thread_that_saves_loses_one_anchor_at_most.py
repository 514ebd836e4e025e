"""At any change of the disk by the thread that writes an anchor: killed, out of space, or without power, the chain is the same."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rollout.objects.filesystem import FilesystemStore
from rollout.objects.reading import ObjectFiles

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / name) for name in ("snapshots", "ledger", "simulation")]

from crash_kit import KILLED, REFUSED, REMOVALS, in_child  # noqa: E402 - found above
from power import Disk  # noqa: E402

STEPS, EVERY, CALLS_MAX = 5, 2, 200
SOME = pytest.mark.parametrize(
    "stride", [11, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "every call"]
)


class Journal:
    """A coordinator whose answers outlive the process that asks: all that it knows is in a file after each call."""

    def __init__(self, inner: Any, path: Path) -> None:
        self.inner, self.path = inner, path
        self.handle = os.open(path, os.O_CREAT | os.O_RDWR)
        self._write()

    def _write(self) -> None:
        known = {f.name: getattr(self.inner, f.name) for f in fields(self.inner)}
        known.pop("make")
        data = pickle.dumps(known)
        os.pwrite(self.handle, len(data).to_bytes(8, "little") + data, 0)

    def read(self, calls: Any) -> Any:
        """What it knew last, in another coordinator."""
        data = os.pread(self.handle, 1 << 26, 0)
        known = pickle.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        os.close(self.handle)
        for name, value in known.items():
            setattr(calls, name, value)
        return calls

    def as_worker(self, worker: str, incarnation: int = 0) -> Any:
        from routed_calls import RoutedCalls

        return RoutedCalls(self, incarnation)

    def __getattr__(self, name: str) -> Any:
        effect = getattr(self.inner, name)

        def call(ask: Any) -> Any:
            answer = effect(ask)
            self._write()
            return answer

        return call


@pytest.fixture
def saving(world):
    """The world with anchors every other step, in a store that has its folders."""
    settings = replace(world.settings, anchor_every_steps=EVERY)
    FilesystemStore(world.folder / "first").put(
        b"torch, and all that a first call loads, is loaded"
    )
    return replace(world, settings=settings)


@pytest.fixture
def calm(saving, coordinator):
    calls = coordinator(steps_max=STEPS)
    replace(saving, folder=saving.folder / "calm").run(calls)
    assert [one.step for one in calls.anchors] == [2, 4, 5]
    return calls


def in_the_thread(at: int, happens):
    """A fault at the thread's change number ``at``, and at each after it."""
    left = at

    def fault(event: str) -> None:
        nonlocal left
        if threading.current_thread().name.startswith("anchor"):
            if left <= 0:
                happens(event)
            left -= 1

    return fault


def kill(_: str) -> None:
    os._exit(KILLED)


def fill(event: str) -> None:
    if event not in REMOVALS:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_went_on(place, calls, calm) -> None:
    """What was acknowledged is there and whole; another process comes to the same chain."""
    files = ObjectFiles(place.folder / "objects")
    for anchor in calls.anchors:
        for digest in [*anchor.version.objects, *anchor.objects.values()]:
            files.path(digest)
    place.run(calls)
    assert calls.records == calm.records
    assert not calls.forks
    assert [one.step for one in calls.anchors][-1] == STEPS


@SOME
@pytest.mark.parametrize(
    ("happens", "code"), [(kill, KILLED), (fill, REFUSED)], ids=["killed", "full"]
)
def test_a_process(saving, coordinator, calm, happens, code, stride) -> None:
    lost = set()
    for at in range(0, CALLS_MAX, stride):
        place = replace(saving, folder=saving.folder / f"at-{at}")
        journal = Journal(coordinator(steps_max=STEPS), place.folder.with_suffix(".journal"))
        ended, words = in_child(0, lambda: place.run(journal), in_the_thread(at, happens))  # noqa: B023
        calls = journal.read(coordinator(steps_max=STEPS))
        if ended == 0:
            assert at > EVERY
            break
        assert ended == code
        assert code == KILLED or "no space left" in words
        lost.add(calls.committed - max((one.step for one in calls.anchors), default=0))
        check_went_on(place, calls, calm)
    assert ended == 0
    assert lost
    assert max(lost) <= 2 * EVERY


class CutError(BaseException):
    """The power goes: nothing that runs notices."""


class Power:
    """Passes flushes on to a disk that forgets, until the thread's flush number ``at``; from then on there is none."""

    def __init__(self, disk: Disk, at: int) -> None:
        self._disk, self._left, self._flush = disk, at, os.fsync
        self._turn = threading.Lock()
        self.over = False

    def fsync(self, handle: int) -> None:
        with self._turn:
            if threading.current_thread().name.startswith("anchor"):
                self.over = self.over or self._left <= 0
                self._left -= 1
            if self.over:
                raise CutError
            self._flush(handle)
            self._disk.fsync(handle)


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("anchor"):
            thread.join()


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_the_power(saving, coordinator, calm, monkeypatch, stride) -> None:
    for at in range(0, CALLS_MAX, stride):
        place = replace(saving, folder=saving.folder / f"at-{at}")
        place.folder.mkdir()
        disk, calls = Disk(place.folder, "-"), coordinator(steps_max=STEPS)
        power = Power(disk, at)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", power.fsync)
            with contextlib.suppress(CutError):
                place.run(calls)
            join_threads()
        if not power.over:
            break
        disk.cut()
        check_went_on(place, calls, calm)
    assert at > 0
    assert not power.over
