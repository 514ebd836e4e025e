"""A coordinator process over fake rows, and workers that only move messages: the control plane alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rollout.coordinator.dispatcher import open_coordinator
from rollout.coordinator.plan import RunPlan, TrainPlan
from rollout.coordinator.server.callers import SecretCallers
from rollout.coordinator.server.server import ServerOptions, serve
from rollout.ledger.records import RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.filesystem import FilesystemStore
from rollout.types import Row, SamplingParams

SECRET = "bench"
GROUPS, SAMPLES = 32, 8
IDENTITY = RunIdentity(uid="bench", name="bench", spec_digest="blake3:0")


class Rows:
    """Row n asks n + n."""

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """One row a task."""
        return [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in ordinals]

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """No evaluations here."""
        raise NotImplementedError


def build_plan(groups: int, samples: int) -> RunPlan:
    """Steps of ``groups`` groups, for as long as anybody measures."""
    train = TrainPlan(
        tasks_per_step=groups,
        num_samples=samples,
        sampling=SamplingParams(max_new_tokens=8),
        steps_max=1_000_000,
    )
    return RunPlan(name="bench", uid="bench", train=train)


async def main(folder: Path, port: int, groups: int = GROUPS, samples: int = SAMPLES) -> None:
    """Serve until SIGTERM."""
    plan = build_plan(groups, samples)
    coordinator = await open_coordinator(
        plan,
        SqliteLedger(folder / "ledger.db", IDENTITY),
        FilesystemStore(folder / "objects"),
        Rows(),
        snapshots=folder,
        summarise=lambda rewards: {"num": len(rewards)},
    )
    door = ServerOptions(host="127.0.0.1", port=port, callers=SecretCallers(SECRET))
    await serve(coordinator, door)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
