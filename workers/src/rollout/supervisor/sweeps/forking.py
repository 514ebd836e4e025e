"""Forks of winners: what takes a loser's place begins with a snapshot of the best point at the loser's rung.

The rule, and what a fork changes, are those of a RolloutSweep. A fork stands in the book before anything is done for it,
and its snapshot before it begins: a sweep that is killed goes on with the forks that it had decided, each once.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from rollout.errors import NoAnchorYet, RolloutError, SpecError
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import KnownPlace, place_of_run, read_config
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import list_manifests
from rollout.snapshots.signing import key_path, open_signer
from rollout.supervisor.sweeps.book import Entry, ForkedFrom, Sweep, read_book, unreadable
from rollout.supervisor.sweeps.halving import PointsComparer
from rollout.supervisor.sweeps.points import Axis, Grid, Point, settle_point
from rollout_api.names import SNAPSHOT_MANIFESTS, sweep_fork_name
from rollout_api.sweeps.forking import EXPLORED, explore, explore_listed, is_explored
from rollout_api.sweeps.halving import Loser
from rollout_api.sweeps.settable import find_settable

LOOK_SECONDS = 1.0
"""Between two tries at the snapshots that forks wait for."""
MESSAGE_MAX = 400
_NUMBER = re.compile(r"f([0-9]{3,})")


def require_forkable(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raises SpecError where a fork would be its winner once more, would write to the winner's place, or could have no name."""
    assert sweep.grid is not None
    if not any(is_explored(axis.path) for axis in sweep.grid.axes):
        raise SpecError(
            "forks: nothing swept is of what a begun run may change, so that a fork would be its winner once more;"
            f" add one of {', '.join(EXPLORED)}, or leave --forks out"
        )
    train = prepare_run(points[0].document).spec.train
    if train is not None and train.output is not None:
        raise SpecError(
            "forks: spec.train.output: a fork would write its model to its winner's place; leave it out, and take the"
            " best one home by rollout model export"
        )
    build_fork(sweep.grid, sweep_fork_name(sweep.folder.name, 1), points[0].settings)


def build_fork(
    grid: Grid, name: str, settings: Mapping[str, Any], source: ForkedFrom | None = None
) -> Point:
    """The fork of this name with these settings; with ``source`` it begins with that snapshot. Raises SpecError."""
    if source is None or not source.uri:
        return settle_point("fork", grid.base, name, settings)
    begun = {"object": {"uri": source.uri, "digest": source.digest}}
    return settle_point("fork", grid.base, name, settings, restoreFrom=begun)


def plan_forks(
    sweep: Sweep, entries: Sequence[Entry], losers: Iterable[Loser], comparer: PointsComparer
) -> list[Entry]:
    """What takes the places of losers, as the book is to have it."""
    made: list[Entry] = []
    taken = [entry for entry in entries if entry.forked_from is not None]
    working = {entry.point.name: entry for entry in entries if entry.state == "running"}
    number = max((_number_of(sweep, entry.point.name) for entry in taken), default=0)
    for lost in losers:
        winner = working.get(comparer.find_winner(working, lost.step) or "")
        if sweep.grid is None or winner is None or winner.run is None:
            continue
        if len(taken) + len(made) >= sweep.forks_max:
            break
        name = sweep_fork_name(sweep.folder.name, number + len(made) + 1)
        begun = ForkedFrom(
            name=winner.point.name,
            step=comparer.last(winner.point.name)[0] or 0,
            run_dir=str(winner.run.path),
        )
        made.append(_plan(sweep.grid, name, explore_settings(sweep.grid, winner, name), begun))
    return made


def _plan(grid: Grid, name: str, settings: Mapping[str, Any], begun: ForkedFrom) -> Entry:
    """A fork that waits; one whose settings are no manifest's has failed."""
    try:
        return Entry(point=build_fork(grid, name, settings, begun), forked_from=begun)
    except SpecError as error:
        none = Document(source=name, data={}, lines={})
        point = Point(name=name, settings=dict(settings), document=none)
        words = str(error)[:MESSAGE_MAX]
        return Entry(point=point, forked_from=begun, state="failed", message=words)


def explore_settings(grid: Grid, winner: Entry, name: str) -> dict[str, Any]:
    """The winner's settings; of those that a begun run may change the value beside."""
    return {axis.path: _beside(axis, winner.point.settings[axis.path], name) for axis in grid.axes}


def _beside(axis: Axis, value: Any, name: str) -> Any:
    if axis.parameter is not None:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        (found,) = explore((axis.parameter,), (text,), name)
        return find_settable(axis.path).parse(found)
    place = _place(axis, value)
    if place is None:
        return value
    found = explore_listed(axis.path, axis.texts, axis.texts[place], name)
    return axis.values[axis.texts.index(found)]


def _place(axis: Axis, value: Any) -> int | None:
    """Where a value stands among those of an axis; the book has it as JSON does."""
    wanted = _as_json(value)
    return next((at for at, one in enumerate(axis.values) if _as_json(one) == wanted), None)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _number_of(sweep: Sweep, name: str) -> int:
    found = _NUMBER.fullmatch(name.removeprefix(f"{sweep.folder.name}-"))
    return 0 if found is None else int(found[1])


def read_forks(sweep: Sweep) -> list[Entry]:
    """Forks that an earlier life of this sweep has decided, in that order. Raises SpecError for a book that is damaged.

    Those that could not begin stay so; those over other fields than the sweep has now are left out.
    """
    if sweep.grid is None:
        return []
    found = [one for one in read_book(sweep) if one.get("forked_from") is not None]
    try:
        return [entry for one in found if (entry := _read(sweep, sweep.grid, one)) is not None]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise unreadable(sweep, error) from error


def _read(sweep: Sweep, grid: Grid, one: Mapping[str, Any]) -> Entry | None:
    begun = msgspec.convert(one["forked_from"], type=ForkedFrom)
    name, settings = str(one["name"]), dict(one.get("settings") or {})
    if not _number_of(sweep, name):
        raise ValueError(f"{name!r} is no fork of this sweep")
    if settings.keys() != {axis.path for axis in grid.axes}:
        return None
    entry = _plan(grid, name, dict(_as_written(grid, settings)), begun)
    if one["state"] == "failed" and not begun.uri:
        entry.state, entry.message = "failed", str(one.get("message") or "it never began")
    return entry


def _as_written(grid: Grid, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for axis in grid.axes:
        place = _place(axis, settings[axis.path])
        yield axis.path, settings[axis.path] if place is None else axis.values[place]


def describe_fork(entry: Entry) -> str:
    """What becomes of a fork that was just decided, for people."""
    assert entry.forked_from is not None
    if entry.state == "failed":
        return f"failed: {entry.message}"
    changed = ", ".join(f"{path}={value}" for path, value in entry.point.settings.items())
    return f"to begin from {entry.forked_from.name}, with {changed}"


def awaits_snapshot(entry: Entry) -> bool:
    """Whether a fork waits for what it begins with."""
    begun = entry.forked_from
    return begun is not None and not begun.uri and entry.state == "waiting"


@dataclass(slots=True, kw_only=True)
class Forking:
    """Takes the snapshots that forks wait for; a winner that has saved nothing yet is asked again."""

    looked_at: float = 0.0

    def save(self, sweep: Sweep, entries: Sequence[Entry]) -> bool:
        """Once a second; whether there is something to be written down."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_SECONDS or not any(map(awaits_snapshot, entries)):
            return False
        self.looked_at = now
        states = {entry.point.name: entry.state for entry in entries}
        decided = [_save(sweep, one, states) for one in entries if awaits_snapshot(one)]
        return any(decided)


def _save(sweep: Sweep, entry: Entry, states: Mapping[str, str]) -> bool:
    """Whether a fork can begin now, or never will."""
    assert entry.forked_from is not None
    assert sweep.grid is not None
    winner = entry.forked_from.name
    name, state = entry.point.name, states.get(winner, "finished")
    try:
        if state in {"finished", "failed"}:
            raise SpecError(f"point {winner}, which it was to begin from, had ended before")
        begun = take_snapshot(entry.forked_from, name)
        entry.point = build_fork(sweep.grid, name, entry.point.settings, begun)
    except RolloutError as error:
        if isinstance(error, NoAnchorYet) and state in {"running", "waiting"}:
            return False
        entry.state, entry.message = "failed", str(error)[:MESSAGE_MAX]
        sweep.tell(f"{name}: failed: {entry.message}")
        return True
    entry.forked_from = begun
    sweep.tell(f"{name}: begins with snapshot {begun.digest} of {winner}")
    return True


def take_snapshot(source: ForkedFrom, label: str) -> ForkedFrom:
    """A snapshot of a winner's newest anchor, or the one that was taken for this fork before. Raises RolloutError."""
    run = RunDir(path=Path(source.run_dir))
    place, config = place_of_run(run), read_config(run)
    taken = _find_taken(place, config.run.uid, label)
    if taken is None:
        signer = open_signer(key_path(os.environ))
        taken = create_snapshot(run, signer, label=label, place=place).manifest
    last = config.spec.train.max_steps if config.spec.train is not None else None
    if last is not None and taken.header.step >= last:
        raise SpecError(f"point {source.name}, which it was to begin from, has come to its end")
    where = place.where if "://" in place.where else Path(place.where).absolute().as_uri()
    uri = f"{where}/{SNAPSHOT_MANIFESTS}{taken.id}.json"
    return replace(source, uri=uri, digest=f"blake3:{taken.id}")


def _find_taken(place: KnownPlace, uid: str, label: str) -> Manifest | None:
    for one in list_manifests(place.named):
        if isinstance(one, Manifest) and one.header.label == label and one.header.run.uid == uid:
            return one
    return None
