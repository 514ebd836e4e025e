"""What a suite is: rows of one split, the environment they are played in, and how answers are scored.

The coordinator takes the rows, the actors the rest. Nothing is started here; the suites that rollout ships are in
``rollout.evaluations.builtin``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout.data.subset import Part
from rollout.evaluations.metrics import Metric
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource, EnvBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSampling:
    """What a suite says of its completions: texts that end one, and tokens where the manifest names none."""

    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One evaluation's question paper.

    ``source`` opens the rows of the wanted split and ``environment`` makes what plays them (lazily: only the coordinator
    reads the ones, only actors play the others, and the user's code is imported by no other process);
    ``rewards`` score the answers, at least 0.5 meaning correct; ``metrics`` are measured beside accuracy. ``is_scored``:
    answers are given, and how likely each is decides.
    """

    name: str
    split: Part
    environment: Callable[[], EnvBuilder]
    rewards: Sequence[RewardSource]
    source: Callable[[], DataSource]
    sampling: SuiteSampling = field(default_factory=SuiteSampling)
    metrics: Sequence[Metric] = ()
    is_scored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a suite may take from its run: where to look, and what training does.

    ``environment`` holds the parameters of the training's builtin environment of the same name,
    ``models`` the folders of reward models by role. ``trains`` False: nothing is chosen by what is measured.
    """

    split: Part
    seed: int = 0
    base_dir: Path = field(default_factory=Path)
    environment: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)
    trains: bool = True
