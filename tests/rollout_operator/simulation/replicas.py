"""Two replicas of the operator, of which the holder of the Lease writes, and what happens to one of them.

One is killed, told to end, or frozen; its clock goes at another rate, so that both believe they lead; its Lease cannot be
renewed; its watches fall silent, so that it acts on a stale cache. ``Fencing`` judges what both write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kept_promises import settle
from model_objects import Body, Change, ModelObjects, Place
from model_requests import FROZEN, LATE, ModelSession
from run_stories import PLACE
from virtual_time import Process

from rollout_operator.manager import Manager

RATES = (0.1, 0.1, 1.0, 2.5)
"""Of a replica's clock, where clocks are not honest: with a slow one it leads for longer than the Lease says, with a fast one it takes it too soon."""
LASTS_SECONDS = (10.0, 60.0)
"""How long a freeze, a silence or a Lease that cannot be reached lasts."""
LEASE = ("leases", "system", "rollout-operator")


@dataclass(slots=True, kw_only=True)
class Replica:
    """One of the operator's places: process after process lives here, each with an identity of its own.

    ``back_at``: when the next one begins.
    """

    place: str
    process: Process
    rate: float = 1.0
    sessions: list[ModelSession] = field(default_factory=list)
    manager: Manager | None = None
    is_leaving: bool = False
    back_at: float = 0.0

    @property
    def identity(self) -> str:
        return self.process.name

    def leads(self) -> bool:
        return self.manager is not None and self.manager.leader.leading.is_set()

    def begin(self, process: Process, rate: float) -> None:
        self.process, self.rate = process, rate
        self.sessions, self.manager, self.is_leaving = [], None, False


@dataclass(frozen=True, slots=True)
class Disturber:
    """Does to a replica what chance says; what passes is over after a while."""

    draw: random.Random
    later: Callable[[float, Callable[[], None]], object]

    def __call__(self, kind: str, replica: Replica) -> None:
        DISTURBANCES[kind](self, replica)

    def kill(self, replica: Replica) -> None:
        replica.process.kill()

    def end(self, replica: Replica) -> None:
        """SIGTERM: it gives its Lease back."""
        if replica.manager is not None:
            replica.is_leaving = True
            replica.manager.ending.set()

    def freeze(self, replica: Replica) -> None:
        replica.process.freeze()
        self.later(self.draw.uniform(*LASTS_SECONDS), replica.process.thaw)

    def hush(self, replica: Replica) -> None:
        self._for_a_while([one.hearing for one in replica.sessions])

    def hide_the_lease(self, replica: Replica) -> None:
        self._for_a_while([one.reaching for one in replica.sessions if not one.is_guarded])

    def _for_a_while(self, events: list[asyncio.Event]) -> None:
        for event in events:
            event.clear()
            self.later(self.draw.uniform(*LASTS_SECONDS), event.set)


DISTURBANCES: dict[str, Callable[[Disturber, Replica], None]] = {
    "a replica is killed": Disturber.kill,
    "a replica is told to end": Disturber.end,
    "a replica is frozen": Disturber.freeze,
    "a cache is stale": Disturber.hush,
    "the Lease is out of reach": Disturber.hide_the_lease,
}

SPLITTING = ("conflict", "killed before", "killed after", LATE, FROZEN, FROZEN, FROZEN)
SPLITS = ("a replica is frozen", "a cache is stale", "the Lease is out of reach")
"""Where clocks are not honest: what makes two of them write."""


@dataclass(slots=True, kw_only=True)
class Fencing:
    """What one replica wrote, the other neither loses nor undoes while nothing else has happened.

    With honest clocks no replica begins a write while another one holds the Lease.
    """

    fail: Callable[[str], None]
    num_others: int = 0
    num_overlaps: int = 0
    """Writes of one that took itself for the leader while the other one was."""
    writers: set[str] = field(default_factory=set)
    _last: dict[Place, tuple[str, Body | None, int]] = field(default_factory=dict)

    def sends(self, who: str, what: str, model: ModelObjects, *, honest: bool) -> None:
        """As a write leaves its replica."""
        holder = model.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity", "")
        if holder in {"", who}:
            return
        self.num_overlaps += 1
        if honest:
            self.fail(f"{who} begins to write while {holder} holds the Lease: {what}")

    def changed(self, change: Change, writer: str) -> None:
        """After a write; ``writer`` is empty for anybody but a replica."""
        place = change.place
        if place[0] in {"leases", "events"}:
            return
        before, after = settle(change.before), settle(change.after)
        if not writer:
            self._last.pop(place, None)
            self.num_others += place == PLACE or place[0] == "pods"
            return
        self.writers.add(writer)
        by, was, others = self._last.get(place, ("", None, -1))
        if by not in {"", writer} and others == self.num_others and was == after != before:
            self.fail(f"{writer} undoes what {by} wrote: {'/'.join(place)}")
        self._last[place] = (writer, before, self.num_others)
