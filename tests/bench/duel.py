"""Two (or more) processes that take turns: A B A B, each working alone while the others wait.

Everything slow or noisy about the machine then falls on both, and each pair of neighbouring turns
is a sample of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
THREADS = int(os.environ.get("BENCH_THREADS", "2"))
Turn = dict[str, Any]
"""What a child said of a turn: ``seconds``, ``cpu_seconds``, ``peak_bytes``, and its own facts."""


def environment(threads: int = THREADS) -> dict[str, str]:
    """Equal for all sides: threads, no network, no telemetry."""
    wanted = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    return {**os.environ, **wanted}


def pin(cores: int = THREADS) -> None:
    """Leave this process and all that it starts the first ``cores`` cores that it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One contender: a script beside this file and its arguments."""

    script: str
    arguments: tuple[str, ...]


class Player:
    """A running side."""

    def __init__(self, side: Side, log: Path, *, threads: int = THREADS) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / side.script), *side.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**environment(threads), "TMPDIR": str(log.parent)},
            )

    def hear(self) -> Turn:
        """The next line. Raises RuntimeError when the process is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self._log.stem} ended with {self.process.wait()}:\n{tail}")
        return json.loads(line)

    def turn(self) -> Turn:
        """Let it do one piece of work, and wait for its report."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def players(sides: Mapping[str, Side]) -> Iterator[dict[str, tuple[Player, Turn]]]:
    """All sides started and ready, with what each said when it was."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollout-bench-")))
        found: dict[str, Player] = {}
        for name, side in sides.items():
            found[name] = Player(side, logs / f"{name}.log")
            stack.callback(found[name].close)
        yield {name: (player, player.hear()) for name, player in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Turns by side, warm-up dropped; ``last`` are each fresh process's final reports."""

    turns: dict[str, list[Turn]]
    ready: dict[str, list[Turn]]
    last: dict[str, list[Turn]]

    def values(self, side: str, name: str) -> list[float]:
        """One number of every turn."""
        return [turn[name] for turn in self.turns[side]]

    def seconds_per(self, side: str, name: str) -> list[float]:
        """Seconds of every turn, per what it counted in ``name``."""
        return [turn["seconds"] / turn[name] for turn in self.turns[side]]


def fight(sides: Mapping[str, Side], rounds: Sequence[int]) -> Duel:
    """``rounds[r]`` pairs with the r-th set of fresh processes, after one warm-up turn each.

    Raises RuntimeError when the sides do not start from equal weights and equal data.
    """
    names = list(sides)
    duel = Duel(
        turns={name: [] for name in names},
        ready={name: [] for name in names},
        last={name: [] for name in names},
    )
    for pairs in rounds:
        with players(sides) as playing:
            _check_equal({name: said for name, (_, said) in playing.items()})
            for name, (player, said) in playing.items():
                duel.ready[name].append(said)
                player.turn()
            for _ in range(pairs):
                for name, (player, _) in playing.items():
                    duel.turns[name].append(player.turn())
            for name in names:
                duel.last[name].append(duel.turns[name][-1])
    return duel


def _check_equal(said: Mapping[str, Turn]) -> None:
    for key in ("weights", "first_tokens"):
        if len({json.dumps(turn[key]) for turn in said.values()}) != 1:
            raise RuntimeError(f"the sides differ in {key}: {said}")


def split_rounds(pairs: int, rounds_max: int = 2) -> list[int]:
    """So many pairs over that many sets of fresh processes."""
    rounds = min(rounds_max, pairs)
    return [pairs // rounds + (index < pairs % rounds) for index in range(rounds)]
