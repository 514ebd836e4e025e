"""The actor asks its engine for what changed only when what is there was verified; else for everything."""

import asyncio
from pathlib import Path

import pytest
from actor_fakes import VERSION, SayingEngine

from rollout.actor.weight_loader import ATTEMPTS_MAX, WeightLoader
from rollout.errors import EngineError
from rollout.types import WeightVersion

CHANGES = frozenset({"model.norm.weight"})
NEXT = WeightVersion(lineage=0, step=4, digest="blake3:ef", object="blake3:01")


class Bus:
    """Files of versions; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.forgotten = 0

    def path(self, name: str) -> Path:
        return Path(name)

    def changes(self, since: str, name: str):
        self.asked.append((since, name))
        return CHANGES

    def forget(self) -> None:
        self.forgotten += 1


class Remembering(SayingEngine):
    """Remembers what it was told had changed; a wrong digest leaves it without a version."""

    def __init__(self, digests=()) -> None:
        super().__init__(lambda *_: "", digests)
        self.changed = []

    async def load(self, version, weights, changed=None):
        self.changed.append(changed)
        digest = await super().load(version, weights)
        self.version = version if digest == version.digest else None
        return digest


def activate(engine, *versions: WeightVersion):
    bus, reports = Bus(), []

    async def act():
        activator = WeightLoader(engine, bus, reports.append)
        for version in versions:
            await activator.activate(version)
        await activator.settle()

    asyncio.run(act())
    return bus, reports


def test_the_first_version_is_loaded_whole_and_the_next_as_what_changed():
    engine = Remembering()

    bus, _ = activate(engine, VERSION, NEXT)

    assert engine.changed == [None, CHANGES]
    assert bus.asked == [(VERSION.object, NEXT.object)]


def test_after_a_wrong_digest_everything_is_loaded_anew_from_a_dense_base():
    engine = Remembering([VERSION.digest, "blake3:wrong", NEXT.digest])

    bus, reports = activate(engine, VERSION, NEXT)

    assert engine.changed == [None, CHANGES, None]
    assert bus.forgotten == 1
    assert [one.ok for one in reports] == [True, False, True]
    assert "blake3:wrong" in reports[1].message


def test_an_engine_that_stays_wrong_samples_nothing():
    engine = Remembering(["blake3:wrong"] * ATTEMPTS_MAX)

    with pytest.raises(EngineError, match=f"{ATTEMPTS_MAX} attempts"):
        activate(engine, VERSION)

    assert engine.version is None
    assert engine.changed == [None] * ATTEMPTS_MAX
