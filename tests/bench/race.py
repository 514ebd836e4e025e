"""From process start to 0.9 of the held-out questions right: ``rollout run`` against TRL, seed by seed."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from duel import THREADS, Player, Side
from figures import Figure, level, ratio
from real_run import evaluations, started, write_manifest
from recipe import Race, race_manifest, race_of, stage_manifest, write_race

SEEDS = int(os.environ.get("BENCH_SEEDS", "5"))
WANTED = float(os.environ.get("BENCH_ACCURACY", "0.9"))
SECONDS_MAX = float(os.environ.get("BENCH_RACE_SECONDS", "300"))
"""A side that has not come there by then is given this time."""
POLL_SECONDS = 0.2
TRL_THREADS = int(os.environ.get("BENCH_TRL_THREADS", str(THREADS)))


def measure() -> Iterator[Figure]:
    """The ratio, and both times."""
    with TemporaryDirectory(prefix="rollout-bench-race-") as name:
        folder = Path(name)
        manifest = write_manifest(folder / "race.yaml", race_manifest(stage_manifest(folder)))
        race = race_of(manifest, folder)
        ours, theirs = [], []
        for seed in range(SEEDS):
            ours.append(ours_seconds(manifest, folder / f"ours-{seed}", seed))
            theirs.append(trl_seconds(replace(race, seed=seed), folder / f"trl-{seed}"))
    yield ratio(f"time to {WANTED:g} accuracy vs TRL", ours, theirs, ">= 1.3")
    yield level("time to accuracy, ours", ours, "s", "info")
    yield level("time to accuracy, TRL", theirs, "s", "info")


def ours_seconds(manifest: Path, run_dir: Path, seed: int) -> float:
    """Wall seconds from the start of ``rollout run`` until the ledger holds a good enough evaluation."""
    with started(manifest, run_dir, f"seed={seed}") as running:
        while time.time() - running.at < SECONDS_MAX and running.process.poll() is None:
            for at, accuracy in evaluations(running.run):
                if accuracy >= WANTED:
                    return at - running.at
            time.sleep(POLL_SECONDS)
    return SECONDS_MAX


def trl_seconds(race: Race, folder: Path) -> float:
    """The same for TRL, evaluating the same questions at the same steps."""
    folder.mkdir()
    path = write_race(race, folder / "race.json")
    start = time.time()
    with ExitStack() as stack:
        side = Side(script="trl_race.py", arguments=(path,))
        player = Player(side, folder / "trl.log", threads=TRL_THREADS)
        stack.callback(player.close)
        while (left := start + SECONDS_MAX - time.time()) > 0:
            said = _hear(player, left)
            if said is not None and said["accuracy"] >= WANTED:
                return said["at"] - start
    return SECONDS_MAX


def _hear(player: Player, seconds: float) -> dict[str, float] | None:
    """A line, if one comes in time. Lines are written one at a time, so none waits in the buffer."""
    stream = player.process.stdout
    assert stream is not None
    ready, _, _ = select.select([stream], [], [], seconds)
    return player.hear() if ready else None


def main() -> None:
    """For a look without the rest."""
    for figure in measure():
        print(figure.line(), json.dumps(figure.samples))


if __name__ == "__main__":
    main()
