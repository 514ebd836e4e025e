"""What planning a sweep takes and gives: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollout_api.v1alpha1.sweep import SweepSpec, SweepStatus
from rollout_operator.controller.conditions import Status
from rollout_operator.run.plan.model import Blocked, EventSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun:
    """A RolloutRun with the name of one of the sweep's. ``mine``: the sweep controls it.

    ``stopped``: the sweep has suspended it because it lost, ``held``: because the sweep is suspended. ``rests``: it is
    suspended and its pods are gone. ``value`` is finite, None where the run reports none. ``values``: what its spec has at
    the sweep's parameters.
    """

    name: str
    uid: str
    version: int
    mine: bool
    deleting: bool = False
    suspended: bool = False
    stopped: bool = False
    held: bool = False
    rests: bool = False
    outcome: Literal["Succeeded", "Failed"] | None = None
    message: str = ""
    step: int | None = None
    value: float | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSnapshot:
    """A RolloutSnapshot with the name of one of the sweep's forks. ``failed``: why it never will be what a run can begin with."""

    name: str
    mine: bool
    run: str
    ready: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSeen:
    """One RolloutSweep and its runs. ``spec`` is None where ``fault`` says what is wrong with it.

    ``template`` is the spec of its runs as it was written. ``gate``: what was refused just now.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: SweepSpec | None
    template: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    status: SweepStatus
    runs: Mapping[str, SweptRun] = field(default_factory=dict)
    snapshots: Mapping[str, SweptSnapshot] = field(default_factory=dict)
    gate: Blocked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A run to be made, with its values in the order of the parameters. ``snapshot``: what it begins with, empty for the model."""

    name: str
    values: tuple[str, ...]
    snapshot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """A snapshot to be made of a winner, for the fork of this name."""

    name: str
    run: str
    run_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepActs:
    """What to do now, as the status that is written already has it. ``blocked``: why more is not done.

    ``stops``: losers. ``holds``, ``resumes``: runs that are suspended, and go on, with the sweep.
    """

    saves: tuple[ForkOrder, ...] = ()
    makes: tuple[RunOrder, ...] = ()
    stops: tuple[SweptRun, ...] = ()
    holds: tuple[SweptRun, ...] = ()
    resumes: tuple[SweptRun, ...] = ()
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSaying:
    """``status`` None writes nothing; ``notes`` are posted once it is written."""

    status: Status | None
    requeue_seconds: float | None
    notes: tuple[EventSpec, ...] = ()
