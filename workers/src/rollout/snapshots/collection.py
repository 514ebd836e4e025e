"""Deleting objects beside those who save: nothing that a snapshot names, or is about to name, goes.

Who saves writes a *pin* of all its objects first and looks for *condemnations* then; who deletes writes a condemnation first
and looks for pins and manifests then. Whatever the order of the two, one of them sees the other: the deleter spares what is
pinned, the saver waits until the condemnation is gone, and stores what went. A deleter that died leaves its condemnation,
and the next one carries it out.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import field

from rollout.common.bounded import UNREADABLE
from rollout.common.child_processes import is_running
from rollout.errors import StoreError
from rollout.ledger.records import Record
from rollout.objects.named.contract import NamedObjects
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import FOLDER, SnapshotPlace, list_manifests, remove_manifest

PINS, CONDEMNED = f"{FOLDER}pins/", f"{FOLDER}condemned/"
RECORD_BYTES_MAX = 32 << 20
PIN_SECONDS_MAX = 24 * 3600.0
"""Longer than any save takes: an older pin is that of a process that died."""
CONDEMNED_SECONDS_MAX = 600.0
"""A deleter stops by then; an older condemnation is carried out by the next one."""
WAIT_SECONDS, POLL_SECONDS = 30.0, 0.1


class Pin(Record, frozen=True, kw_only=True):
    """Objects that somebody is about to name; ``at`` Unix seconds, ``host`` and ``pid`` who."""

    objects: tuple[str, ...]
    at: float
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


class Condemned(Record, frozen=True, kw_only=True):
    """Snapshots that cease to exist, and objects that go unless somebody names them.

    ``work`` names what this is part of, where that is never done twice at once: its next process goes on with what the
    one before it, which is surely dead, has left.
    """

    manifests: tuple[str, ...]
    objects: tuple[str, ...]
    at: float
    work: str = ""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What a deletion came to: the objects that are gone."""

    objects: tuple[str, ...]


Note = TypeVar("Note", Pin, Condemned)
Keep = Callable[[], Collection[str]]
Clock = Callable[[], float]


@contextmanager
def pinned(
    named: NamedObjects, objects: Collection[str], clock: Clock = time.time
) -> Iterator[None]:
    """While it lasts, nobody deletes these objects. Raises StoreError where a deletion of them does not end."""
    name, tag = _write(named, PINS, Pin(objects=tuple(sorted(objects)), at=clock()))
    try:
        _wait_until_spared(named, objects)
        yield
    finally:
        named.delete(name, tag)


def delete_unnamed(
    place: SnapshotPlace,
    objects: Collection[str],
    *,
    manifests: Collection[str] = (),
    keep: Keep = frozenset,
    clock: Clock = time.time,
    work: str = "",
) -> Deleted:
    """Remove snapshots, and those of the objects that no snapshot, no pin and ``keep`` names. Raises StoreError."""
    condemned = Condemned(
        manifests=tuple(sorted(manifests)), objects=tuple(sorted(objects)), at=clock(), work=work
    )
    if manifests:
        named_objects(place.named, clock)  # refuses before anything has gone
    name, tag = _write(place.named, CONDEMNED, condemned)
    return _carry_out(place, name, tag, condemned, keep, clock)


def finish_deletions(
    place: SnapshotPlace, keep: Keep = frozenset, clock: Clock = time.time
) -> Deleted:
    """Carry out what deleters that died have left. Raises StoreError."""
    return _finish(place, keep, clock, lambda one: _is_over(one, clock(), CONDEMNED_SECONDS_MAX))


def finish_work(
    place: SnapshotPlace, work: str, keep: Keep = frozenset, clock: Clock = time.time
) -> Deleted:
    """Carry out what the dead processes of this work have left, and nothing of others. Raises StoreError."""
    return _finish(place, keep, clock, lambda one: bool(work) and one.work == work)


def _finish(
    place: SnapshotPlace, keep: Keep, clock: Clock, is_mine: Callable[[Condemned], bool]
) -> Deleted:
    gone: list[str] = []
    for name, tag, condemned in list(_read(place.named, CONDEMNED, Condemned)):
        if is_mine(condemned):
            gone += _carry_out(place, name, tag, condemned, keep, clock).objects
    return Deleted(objects=tuple(gone))


def named_objects(named: NamedObjects, clock: Clock = time.time) -> set[str]:
    """Every object that a snapshot of the place names, or that somebody has pinned. Raises StoreError.

    Raises it, too, for a manifest that cannot be read: what it names is not known, so nothing may go.
    """
    found: set[str] = set()
    for _, _, pin in _read(named, PINS, Pin):
        if not _is_over(pin, clock(), PIN_SECONDS_MAX):
            found.update(pin.objects)
    for one in list_manifests(named):
        if not isinstance(one, Manifest):
            raise StoreError(
                f"{named.place}: {one.name} cannot be read ({one.reason}), so it is not known which objects it"
                " needs and none is deleted: move that file away, or restore it"
            )
        found.update(one.objects)
    return found


def _carry_out(
    place: SnapshotPlace, name: str, tag: str, condemned: Condemned, keep: Keep, clock: Clock
) -> Deleted:
    began = time.monotonic()
    for snapshot in condemned.manifests:
        remove_manifest(place.named, snapshot)
    spared = named_objects(place.named, clock) | set(keep())
    gone: list[str] = []
    for digest in condemned.objects:
        if digest in spared or not place.store.has(digest):
            continue
        if time.monotonic() - began > CONDEMNED_SECONDS_MAX:
            raise StoreError(
                f"{place.named.place}: deleting took over {CONDEMNED_SECONDS_MAX:.0f} s; repeat the command,"
                " it goes on where this one stopped"
            )
        place.store.delete(digest)
        gone.append(digest)
    place.named.delete(name, tag)
    return Deleted(objects=tuple(gone))


def _wait_until_spared(named: NamedObjects, objects: Collection[str]) -> None:
    """Until no condemnation names one of them. Raises StoreError."""
    wanted, deadline = set(objects), time.monotonic() + WAIT_SECONDS
    while any(wanted.intersection(one.objects) for _, _, one in _read(named, CONDEMNED, Condemned)):
        if time.monotonic() > deadline:
            raise StoreError(
                f"{named.place}: objects of this snapshot are being deleted since {WAIT_SECONDS:.0f} s: wait for"
                " that command, or, if it died, finish it: rollout snapshot prune"
            )
        time.sleep(POLL_SECONDS)


def _is_over(note: Pin | Condemned, now: float, seconds_max: float) -> bool:
    """Whether who wrote it can no longer be at work: dead on this machine, or past its time."""
    if note.host == socket.gethostname() and note.pid != os.getpid() and not is_running(note.pid):
        return True
    return now - note.at > seconds_max


def _write(named: NamedObjects, folder: str, note: Pin | Condemned) -> tuple[str, str]:
    name = f"{folder}{secrets.token_hex(12)}.json"
    return name, named.create(name, msgspec.json.encode(note))


def _read(named: NamedObjects, folder: str, kind: type[Note]) -> Iterable[tuple[str, str, Note]]:
    for entry in named.entries(folder):
        found = named.get(entry.name, RECORD_BYTES_MAX)
        if found is None:
            continue
        try:
            yield entry.name, found.tag, msgspec.json.decode(found.data, type=kind)
        except (msgspec.ValidationError, *UNREADABLE) as error:
            raise StoreError(f"{named.place}: {entry.name} is none of ours: {error}") from error
