"""A worker that misbehaves at random and writes down every call; as a program, one in a process of its own."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from ledger_kit import IDENTITY, claim_request, failed, finished

from rollout.errors import Fenced
from rollout.ledger.contract import Ledger
from rollout.ledger.records import Lease

LEASE_SECONDS = 0.05


@dataclass(frozen=True)
class Event:
    """What a call was told. ``ids`` are trajectories, by sample."""

    kind: str
    worker: str
    incarnation: int
    position: int
    task_id: str = ""
    epoch: int = 0
    ids: tuple[str, ...] = ()


class Client:
    """Claims, answers, fails, falls silent, comes back late, or is replaced."""

    def __init__(
        self, ledger: Ledger, name: str, chance: random.Random, note: Callable[[Event], None]
    ) -> None:
        self._ledger, self._name, self._chance, self._note = ledger, name, chance, note
        self._incarnation = 0
        self._held: list[tuple[int, Lease]] = []
        self.trouble: BaseException | None = None

    async def run(self, done: threading.Event) -> None:
        """Work until told to end."""
        try:
            await self._register()
            while not done.is_set():
                await self._step()
        except BaseException as error:
            self.trouble = error
            raise

    async def _step(self) -> None:
        move = self._chance.choice(
            [self._claim, self._claim, self._answer, self._answer, self._answer, self._linger]
        )
        if self._chance.random() < 0.03:
            move = self._register
        await move()

    def _write(self, kind: str, incarnation: int, **more: object) -> None:
        position = self._ledger.position
        self._note(
            Event(kind=kind, worker=self._name, incarnation=incarnation, position=position, **more)
        )

    async def _register(self) -> None:
        """A new process of this worker; the old one's leases are kept, to answer for too late."""
        self._incarnation = (await self._ledger.register(self._name, "actor")).incarnation
        self._write("registered", self._incarnation)

    async def _claim(self) -> None:
        mine = tuple(lease.task.task_id for i, lease in self._held if i == self._incarnation)
        ask = claim_request(
            self._name,
            self._incarnation,
            tasks_max=self._chance.randint(1, 3),
            held=mine,
            lease_seconds=LEASE_SECONDS,
        )
        for lease in (await self._ledger.claim(ask)).leases:
            self._held.append((self._incarnation, lease))
            self._write("claimed", self._incarnation, task_id=lease.task.task_id, epoch=lease.epoch)

    async def _answer(self) -> None:
        """End any attempt ever held, some of them twice."""
        if not self._held:
            return
        place = self._chance.randrange(len(self._held))
        incarnation, lease = self._held[place]
        if self._chance.random() < 0.7:
            del self._held[place]
        good = self._chance.random() < 0.85
        end = finished(lease) if good else failed(lease)
        told = {"task_id": lease.task.task_id, "epoch": lease.epoch}
        try:
            verdict = (await self._ledger.submit(self._name, incarnation, [end]))[0]
        except Fenced:
            self._write("fenced", incarnation, **told)
            return
        if not verdict.accepted:
            self._write("refused", incarnation, **told)
        elif good:
            ids = tuple(sample.trajectory_id for sample in end.samples)
            self._write("accepted", incarnation, **told, ids=ids)
        else:
            self._write("failed", incarnation, **told)

    async def _linger(self) -> None:
        """Fall silent, with or without a sign of life."""
        if self._chance.random() < 0.5:
            mine = [lease.task.task_id for i, lease in self._held if i == self._incarnation]
            await self._ledger.renew(self._name, self._incarnation, mine, LEASE_SECONDS)
        await asyncio.sleep(self._chance.choice([0.0, 0.01, 2 * LEASE_SECONDS]))


async def main(dsn: str, uid: str, term: int, number: int) -> None:
    """Work until standard input ends."""
    import msgspec

    from rollout.ledger.postgres.ledger import PostgresLedger

    identity = msgspec.structs.replace(IDENTITY, uid=uid)
    ledger = PostgresLedger(dsn, identity, term=term)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    client = Client(
        ledger,
        f"actor-{number}",
        random.Random(number),
        lambda event: print(json.dumps(asdict(event)), flush=True),
    )
    await client.run(done)
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
