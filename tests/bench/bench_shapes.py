"""GRPO against TRL at shapes that nobody tuned for: drawn from a grid by a seed, in Exact and in Fast.

Prompts of 32 to 1,024 tokens, completions of 16 to 512, 1 to 16 prompts a step in groups of 2 to 32, at most
``TOKENS_MAX`` tokens a step so that a step is seconds. The 25 M model of ``training``; three processes take a step
each in turn. ``run.py shapes 7`` measures seven points, ``run.py shapes 7 20`` those from the 21st on.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from contest import PAIRS, SIZE, make, ours, speed, start, trl
from duel import fight
from figures import Figure, level
from jobs import Job, grpo_job

POINTS = 20
SEED = 20261126
TOKENS_MAX = 6144
PROMPT_TOKENS = (32, 64, 128, 200, 300, 512, 1024)
NEW_TOKENS = (16, 32, 64, 96, 128, 200, 300, 512)
PROMPTS = (1, 2, 4, 8, 16)
GROUPS = (2, 4, 6, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Tokens of a prompt and of a completion, prompts a step, and samples of each."""

    prompt: int
    new: int
    prompts: int
    group: int

    @property
    def tokens(self) -> int:
        """Of a step, prompts counted once a sample, as TRL computes them."""
        return (self.prompt + self.new) * self.prompts * self.group

    def __str__(self) -> str:
        return f"{self.prompt}+{self.new}, {self.prompts} x {self.group}"


def draw_shapes(count: int) -> list[Shape]:
    """The first ``count`` of the drawn points; equal for everybody."""
    noise = random.Random(SEED)
    found: list[Shape] = []
    while len(found) < count:
        shape = Shape(
            prompt=noise.choice(PROMPT_TOKENS),
            new=noise.choice(NEW_TOKENS),
            prompts=noise.choice(PROMPTS),
            group=noise.choice(GROUPS),
        )
        if shape.tokens <= TOKENS_MAX and shape not in found:
            found.append(shape)
    return found


def measure(count: str = str(POINTS), first: str = "0") -> Iterator[Figure]:
    """A figure a point and mode, and the medians over the points."""
    start()
    ratios: dict[str, list[float]] = {"Exact": [], "Fast": []}
    for shape in draw_shapes(int(first) + int(count))[int(first) :]:
        for mode, figure in _compare(shape):
            ratios[mode].append(figure.value)
            yield figure
    for mode, values in ratios.items():
        yield level(f"median of {len(values)} shapes, {mode} vs TRL", values, "x", ">= 1.5")
        least = statistics.quantiles(values, n=10)[0] if len(values) > 1 else values[0]
        yield level(f"tenth of {len(values)} shapes, {mode} vs TRL", [least], "x", "info")


def _compare(shape: Shape) -> Iterator[tuple[str, Figure]]:
    job = make(lambda folder: _job(folder, shape))
    sides = {"trl": trl(job), "exact": ours(job), "fast": ours(replace(job, mode="Fast"))}
    found = fight(sides, [min(PAIRS, 3)])
    for mode, side, bar in (("Exact", "exact", ">= 1.0"), ("Fast", "fast", ">= 1.2")):
        name = f"grpo {shape}, {mode} vs TRL"
        yield mode, speed(name, found, "samples", bar, pair=(side, "trl"))


def _job(folder: Path, shape: Shape) -> Job:
    job = grpo_job(folder, shape.prompt, shape.new, SIZE)
    return replace(job, prompts_per_step=shape.prompts, group_size=shape.group)
