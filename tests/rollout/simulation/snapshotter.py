"""Who takes snapshots beside a simulated run and is killed at drawn calls, and the runs that begin with what it left.

The layers, the store, the guard and the restore of the ledger are the real ones; weights are hashes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from places import EPOCH, IDENTITY
from plans import changed
from scenario import LIMITS, Fault, Scenario, build_scenario
from simulate import Report, memory, run_scenario
from snapshot_kit import header_of, open_at
from world import World

from rollout.errors import LedgerError
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.snapshots.guard import SnapshotGuard
from rollout.snapshots.layers.contract import Moment
from rollout.snapshots.layers.registry import BUFFER, LAYERS
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import SnapshotPlace, list_manifests
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import Signer, open_signer
from rollout.snapshots.verifying import find_snapshot_damage

KILLS = ("kill-learner", "kill-actor", "kill-coordinator", "kill-at-the-end")
CALLS_MAX = 60
"""As many as a small snapshot makes, about."""
History = Mapping[int, tuple[str, ...]]
"""Chain and consumed trajectories of each step."""


class KilledError(BaseException):
    """The snapshotter is dead: nothing of it runs on."""


class Mortal:
    """Passes calls on, until it is dead: a finally that runs then changes nothing."""

    def __init__(self, inner: Any, left: list[int]) -> None:
        self._inner, self._left = inner, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            if self._left[0] <= 0:
                raise KilledError
            self._left[0] -= 1
            return found(*args, **more)

        return call


@dataclass(slots=True)
class Told:
    """What came of one run that was disturbed, and of those that began with its snapshots."""

    report: Report
    acknowledged: set[str] = field(default_factory=set)
    killed: int = 0
    history: History = field(default_factory=dict)
    again: list[tuple[int, Report, History]] = field(default_factory=list)
    """Step of the snapshot that each began with, and what it came to."""


def exact_scenario(seed: int) -> Scenario:
    """A GRPO run in Exact, on policy, whose processes are killed and nothing else."""
    base, draw = build_scenario(seed), random.Random(f"snapshots {seed}")
    plan = changed(
        base.plan,
        exact=True,
        staleness_max=0,
        steps_max=draw.randint(6, 9),
        samples_min=None,
        sample_wait_seconds=1000.0,
        waves_max=None,
        bodies_behind=draw.choice([None, 0, 1]),
    )
    return replace(
        base,
        plan=plan,
        trouble=0.0,
        lost={},
        broken_task=None,
        flat=1,
        salted=False,
        anchor_every=draw.randint(1, 2),
        faults=kills(draw, base.num_actors),
    )


def kills(draw: random.Random, num_actors: int) -> tuple[Fault, ...]:
    """Every role once at least."""
    kinds = [*KILLS, *draw.choices(KILLS, k=draw.randint(0, 3))]
    made = [
        Fault(
            at=draw.uniform(0.5, 40.0),
            kind=kind,
            who=draw.randrange(num_actors),
            seconds=draw.uniform(0.2, 5.0),
        )
        for kind in kinds
    ]
    return tuple(sorted(made, key=lambda fault: fault.at))


def tell(seed: int) -> Told:
    """A run that is disturbed while snapshots are taken of it, and another that begins with one of them."""
    scenario, draw = exact_scenario(seed), random.Random(f"snapshotter {seed}")
    with tempfile.TemporaryDirectory(dir=memory()) as kept:
        told = Told(report=None)  # type: ignore[arg-type]
        signer = open_signer(Path(kept) / "snapshot.key")

        def prepare(world: World) -> None:
            place = open_at(world.folder / "objects")
            world.guard = SnapshotGuard(place.store, place.named)
            world.companions.append(lambda: take_some(world, signer, draw, told))

        def look(world: World) -> None:
            told.history = read_steps(world.folder / "ledger.db")
            shutil.copytree(world.folder / "objects", Path(kept) / "objects")

        told.report = run_scenario(scenario, prepare, look)
        if not told.report.broken:
            check_what_is_left(Path(kept) / "objects", told)
            begin_again(scenario, Path(kept) / "objects", draw, told)
    return told


async def take_some(world: World, signer: Signer, draw: random.Random, told: Told) -> None:
    """Snapshots at drawn moments; every second snapshotter is killed on the way."""
    while True:
        await asyncio.sleep(draw.uniform(0.5, 6.0))
        left = [draw.randrange(CALLS_MAX) if draw.random() < 0.5 else 1 << 30]
        try:
            made = take(world.folder, signer, left)
        except KilledError:
            told.killed += 1
            world.say("the snapshotter is killed")
            continue
        except LedgerError:
            continue  # there is none yet
        if made is not None:
            told.acknowledged.add(made.id)
            world.say(f"snapshot of step {made.header.step}")


def take(folder: Path, signer: Signer, left: list[int]) -> Manifest | None:
    """The snapshot of the newest anchor; None where there is none yet."""
    with LedgerReader(folder / "ledger.db") as ledger:
        if not ledger.anchors():
            return None
        anchor, cut = ledger.cut(lambda anchors: anchors[-1])
    opened = open_at(folder / "objects")
    place = SnapshotPlace(store=Mortal(opened.store, left), named=Mortal(opened.named, left))
    moment = Moment(anchor=anchor, cut=cut, grade="exact", source=opened.store)
    taken = [layer.take(moment) for layer in LAYERS]
    return save_snapshot(place, header_of(anchor), taken, signer)


def read_steps(file: Path) -> History:
    """What each step was, and of which samples."""
    with LedgerReader(file) as ledger:
        return {
            view.step: (view.chain, *(one.trajectory_id for one in ledger.samples(view.step)))
            for view in ledger.steps()
        }


def check_what_is_left(objects: Path, told: Told) -> None:
    """What is listed is whole, and what was acknowledged is listed."""
    place = open_at(objects)
    found = list(list_manifests(place.named))
    assert all(isinstance(one, Manifest) for one in found)
    for one in found:
        assert list(find_snapshot_damage(one, place.store)) == []
    assert told.acknowledged <= {one.id for one in found}


def begin_again(scenario: Scenario, objects: Path, draw: random.Random, told: Told) -> None:
    """Another run, killed at other moments, that begins with a snapshot and goes on to the end."""
    place = open_at(objects)
    last = scenario.plan.train.steps_max
    listed = [one for one in list_manifests(place.named) if isinstance(one, Manifest)]
    open_ones = [one for one in listed if one.header.step != last]
    if not open_ones:
        return
    chosen = draw.choice(open_ones)
    second = replace(scenario, faults=kills(draw, scenario.num_actors))
    found: dict[str, History] = {}

    def prepare(world: World) -> None:
        world.began_elsewhere = True
        asyncio.run(restore(world.folder, chosen, place))
        for digest in chosen.objects:
            world.store.put(place.store.path(digest).read_bytes())

    def look(world: World) -> None:
        found["steps"] = read_steps(world.folder / "ledger.db")

    report = run_scenario(second, prepare, look)
    told.again.append((chosen.header.step, report, found.get("steps", {})))


async def restore(folder: Path, manifest: Manifest, place: SnapshotPlace) -> None:
    record = manifest.layer("buffer")
    assert record is not None
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, LIMITS, lambda: EPOCH)
    try:
        await ledger.restore(BUFFER.read(record, place.store), f"from snapshot {manifest.id}")
    finally:
        await ledger.close()
