"""What a seed stands for: a plan, a number of actors, what goes wrong with samples, and a list of faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

from plans import changed, run_plan

from rollout.coordinator.plan import EvaluationPlan, RunPlan, StragglerPlan
from rollout.ledger.records import Limits
from rollout.types import SamplingParams

SAMPLING = SamplingParams(max_new_tokens=4)
HELDOUT = EvaluationPlan(
    name="heldout",
    split="selection",
    num_prompts=2,
    samples_per_prompt=1,
    sampling=replace(SAMPLING, temperature=0.0),
    at_start=True,
    every_steps=2,
    selects=True,
)
TRIES = 5
LIMITS = Limits(failures_max=TRIES, losses_max=50)
"""Losses are what faults do to innocent tasks: no schedule has as many."""

KINDS = (
    "kill-actor",
    "kill-actor",
    "kill-learner",
    "kill-learner",
    "freeze-actor",
    "freeze-learner",
    "replace-actor",
    "replace-learner",
    "kill-coordinator",
    "lose-acknowledgement",
    "lose-acknowledgement",
    "close-coordinator",
    "kill-at-the-end",
    "skew-ledger-clock",
    "lose-actor",
    "lose-all-actors",
    "wrong-weights",
    "never-right-weights",
    "leave-actor",
    "bad-network",
)


NOTICE = "leave-learner"
REFUSED = "refuse-heartbeats"
STOP = "order-stop"
POWER = "cut-power"
FRESH_FIRST = 1_000_000
"""From here on every third seed is of each kind, and one in three loses its power."""
SLOW_FIRST = 1000
"""Seeds from here on are of runs in which work is slow, is interrupted and moves between actors."""
LATE_FIRST = 2000
"""Seeds from here on are of runs that give samples up while they are being made, and hear of them later."""
POWER_FIRST = 3000
"""Seeds from here on are of runs of every kind whose machine loses its power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """At a virtual second: what happens, to whom (an actor's index), and for how long."""

    at: float
    kind: str
    who: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:7.2f}  {self.kind} actor={self.who} seconds={self.seconds:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule. ``trouble`` is the share of attempts that lose something; ``lost`` samples never come.

    ``salted``: a learner that comes back may compute differently, so that replay opens a lineage.
    ``drift`` makes a worker's seconds longer than the coordinator's, by its name. ``remembers``: environments keep something.
    """

    seed: int
    plan: RunPlan
    num_actors: int
    tasks_max: int
    trouble: float = 0.0
    lost: dict[int, tuple[int, ...]] = field(default_factory=dict)
    broken_task: int | None = None
    flat: int = 1
    salted: bool = False
    slowness: float = 1.0
    anchor_every: int = 2
    drift: dict[str, float] = field(default_factory=dict)
    network: float = 0.0
    faults: tuple[Fault, ...] = ()
    remembers: bool = False

    def calm(self) -> Scenario:
        """The undisturbed run of the same plan."""
        return replace(
            self, trouble=0.0, salted=False, drift={}, network=0.0, faults=(), broken_task=None
        )

    @property
    def must_repeat(self) -> bool:
        """Whether the undisturbed run's chain is promised (docs/concepts/equality.md)."""
        plan = self.plan
        return (
            plan.numerics.exact
            and plan.train.staleness_max == 0
            and not self.salted
            and self.broken_task is None
            and not any(fault.kind == STOP for fault in self.faults)
            # A whole failure on the last try of a group that always loses a part decides about it.
            and not (self.lost and self.trouble)
        )

    def describe(self) -> str:
        plan = self.plan
        names = ("num_actors", "tasks_max", "trouble", "lost", "broken_task", "flat", "salted")
        more = ("anchor_every", "drift", "network", "slowness")
        train = ("staleness_max", "waves_max", "samples_min", "num_samples", "steps_max")
        train += ("tasks_per_step", "extra_groups")
        others = (
            "numerics.exact",
            "storage.bodies_behind",
            "limits.sample_wait_seconds",
            "lease_seconds",
        )
        told = (*(f"train.{name}" for name in train), *others)
        lines = [
            f"seed {self.seed}",
            *(f"  {name} = {getattr(self, name)}" for name in (*names, *more)),
            *(f"  plan.{name} = {attrgetter(name)(plan)}" for name in told),
            *(f"  {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


def build_scenario(seed: int) -> Scenario:
    """Everything that a seed decides before the run begins; see ``SLOW_FIRST``, ``LATE_FIRST`` and what follows."""
    return _with_retention(_with_power_cuts(_with_stop(_with_notices(_choose(seed)(seed)))))


def _choose(seed: int) -> Callable[[int], Scenario]:
    if seed >= POWER_FIRST:
        return (_any, _slow, _late)[seed % 3]
    return _late if seed >= LATE_FIRST else _slow if seed >= SLOW_FIRST else _any


def _late(seed: int) -> Scenario:
    """A learner that waits for less time than some samples take, with and without refills."""
    base, draw = _any(seed), random.Random(f"late {seed}")
    num_actors = draw.randint(2, 4)
    plan = changed(
        base.plan,
        exact=False,
        staleness_max=seed % 3 % 2,
        waves_max=draw.choice([None, 2, 3]),
        samples_min=None,
        steps_max=draw.randint(8, 12),
        sample_wait_seconds=draw.uniform(3.0, 8.0),
    )
    kills = [
        Fault(at=draw.uniform(5.0, 60.0), kind="kill-learner", who=0, seconds=1.0) for _ in range(3)
    ]
    refusals = [
        Fault(at=draw.uniform(2.0, 40.0), kind=REFUSED, who=0, seconds=draw.uniform(1.0, 10.0))
        for _ in range(draw.randint(0, 2))
    ]
    return replace(
        base,
        plan=plan,
        num_actors=num_actors,
        tasks_max=draw.choice([1, 2]),
        trouble=draw.choice([0.0, 0.1]),
        lost={},
        broken_task=None,
        flat=draw.choice([1, 2]) if plan.train.waves_max else 1,
        salted=draw.random() < 0.5,
        anchor_every=draw.randint(2, 6),
        slowness=draw.uniform(1.0, 3.0),
        drift={f"actor-{n}": draw.choice([0.5, 1.0, 4.0]) for n in range(num_actors)},
        faults=tuple(sorted((*base.faults, *kills, *refusals), key=lambda fault: fault.at)),
    )


def _with_notices(base: Scenario) -> Scenario:
    """One run in three has a learner that is told to go; what else a seed decides is not touched."""
    draw = random.Random(f"notice {base.seed}")
    if draw.random() > 1 / 3:
        return base
    notices = tuple(
        Fault(at=draw.uniform(1.0, 40.0), kind=NOTICE, who=0, seconds=draw.uniform(0.0, 10.0))
        for _ in range(draw.randint(1, 3))
    )
    return replace(
        base,
        plan=changed(base.plan, saves_on_notice=draw.random() < 0.7),
        faults=tuple(sorted((*base.faults, *notices), key=lambda fault: fault.at)),
    )


def _with_stop(base: Scenario) -> Scenario:
    """One run in eight is ordered to stop, and most of their coordinators die soon after that."""
    draw = random.Random(f"stop {base.seed}")
    if draw.random() > 1 / 8:
        return base
    stop = Fault(at=draw.uniform(0.5, 40.0), kind=STOP, who=0, seconds=1.0)
    deaths = [
        Fault(
            at=stop.at + draw.uniform(0.0, 4.0),
            kind=draw.choice(["kill-coordinator", "close-coordinator"]),
            who=0,
            seconds=draw.uniform(0.1, 5.0),
        )
        for _ in range(draw.randint(0, 2))
    ]
    faults = (*base.faults, stop, *deaths)
    return replace(base, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def stopped_as_it_comes_back(seed: int) -> Scenario:
    """A learner that dies and computes differently when it comes back, about when the run is ordered to stop."""
    draw = random.Random(f"stopped as it comes back {seed}")
    died, away = draw.uniform(3.0, 20.0), draw.uniform(0.5, 4.0)
    stop = died + away + draw.uniform(-0.6, 0.3)
    return replace(
        build_scenario(seed),
        salted=True,
        faults=(
            Fault(at=died, kind="kill-learner", who=0, seconds=away),
            Fault(at=stop, kind=STOP, who=0, seconds=1.0),
        ),
    )


def _with_power_cuts(base: Scenario) -> Scenario:
    """One machine holds the run: everybody dies at once, and files that were not flushed are lost."""
    draw = random.Random(f"power {base.seed}")
    if base.seed < POWER_FIRST or (base.seed >= FRESH_FIRST and draw.random() > 1 / 3):
        return base
    cuts = tuple(
        Fault(at=draw.uniform(1.0, 40.0), kind=POWER, who=0, seconds=draw.uniform(0.2, 5.0))
        for _ in range(draw.randint(1, 3))
    )
    return replace(base, faults=tuple(sorted((*base.faults, *cuts), key=lambda fault: fault.at)))


def _with_retention(base: Scenario) -> Scenario:
    """One run in two lets go of bodies; what else a seed decides is not touched."""
    draw = random.Random(f"retention {base.seed}")
    if draw.random() > 1 / 2:
        return base
    return replace(base, plan=changed(base.plan, bodies_behind=draw.choice([0, 0, 1, 2])))


def _slow(seed: int) -> Scenario:
    """Samples that outlast heartbeats, several actors of unequal speed, many notices to leave."""
    base, draw = _any(seed), random.Random(f"slow {seed}")
    num_actors = draw.randint(2, 4)
    waves = base.plan.train.waves_max
    plan = changed(
        base.plan,
        exact=False,
        tasks_per_step=4,
        steps_max=draw.randint(9, 12),
        lease_seconds=6.0,
        heartbeat_seconds=1.0,
        extra_groups=0 if waves else draw.choice([0, 1, 2]),
        stragglers=StragglerPlan(
            steal_margin_seconds=draw.choice([0.1, 1.0]),
            deadline_factor=draw.choice([1.0, 3.0, 100.0]),
        ),
    )
    leaving = tuple(
        Fault(
            at=draw.uniform(1.0, 90.0),
            kind="leave-actor",
            who=draw.randrange(num_actors),
            seconds=draw.uniform(0.5, 10.0),
        )
        for _ in range(draw.randint(2, 5))
    )
    faults = (*leaving, *_faults(draw, num_actors)[:4])
    return replace(
        base,
        plan=plan,
        num_actors=num_actors,
        tasks_max=draw.choice([2, 4]),
        trouble=draw.choice([0.0, 0.1]),
        slowness=draw.uniform(2.0, 5.0),
        drift={f"actor-{n}": draw.choice([0.5, 1.0, 4.0]) for n in range(num_actors)},
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _any(seed: int) -> Scenario:
    draw = random.Random(seed)
    num_actors = draw.randint(1, 4)
    plan = _plan(seed, draw)
    quorum = plan.train.samples_min is not None
    return Scenario(
        seed=seed,
        plan=plan,
        num_actors=num_actors,
        tasks_max=draw.choice([1, 2, 4, 8]),
        trouble=draw.choice([0.0, 0.1, 0.3]),
        lost=_lost(draw, plan) if quorum and draw.random() < 0.7 else {},
        broken_task=draw.randrange(4) if draw.random() < 0.05 else None,
        flat=draw.choice([1, 2, 3]) if plan.train.waves_max else 1,
        salted=draw.random() < 0.15,
        anchor_every=draw.randint(1, 3),
        drift={
            name: draw.uniform(0.7, 1.3)
            for name in ("learner", *(f"actor-{index}" for index in range(num_actors)))
            if draw.random() < 0.5
        },
        network=draw.choice([0.0, 0.02, 0.1]),
        faults=_faults(draw, num_actors),
    )


def _plan(seed: int, draw: random.Random) -> RunPlan:
    lease = draw.choice([6.0, 10.0, 15.0])
    num_samples = draw.choice([2, 4])
    quorum = draw.random() < 0.4
    return run_plan(
        name="simulated",
        uid="uid-1",
        tasks_per_step=draw.randint(2, 3),
        num_samples=num_samples,
        sampling=SAMPLING,
        staleness_max=seed % 4,
        steps_max=draw.randint(4, 7),
        waves_max=draw.randint(2, 3) if draw.random() < 0.4 else None,
        samples_min=max(2, num_samples // 2) if quorum else None,
        attempts_max=TRIES,
        exact=draw.random() < 0.8,
        sample_wait_seconds=draw.uniform(20.0, 60.0),
        lease_seconds=lease,
        heartbeat_seconds=lease / 3,
        anchors_kept=draw.randint(1, 3),
        evaluations=(HELDOUT,) if draw.random() < 0.4 else (),
    )


def _lost(draw: random.Random, plan: RunPlan) -> dict[int, tuple[int, ...]]:
    """Samples that infrastructure takes at every try; in every step a whole group remains."""
    found = {}
    for ordinal in range(0, 40, plan.train.tasks_per_step):
        if draw.random() < 0.3:
            number = draw.randint(1, plan.train.num_samples)
            found[ordinal] = tuple(sorted(draw.sample(range(plan.train.num_samples), number)))
    return found


def _faults(draw: random.Random, num_actors: int) -> tuple[Fault, ...]:
    made = [
        Fault(
            at=draw.uniform(0.1, 60.0),
            kind=draw.choice(KINDS),
            who=draw.randrange(num_actors),
            seconds=draw.choice([draw.uniform(0.2, 5.0), draw.uniform(5.0, 60.0)]),
        )
        for _ in range(draw.randint(2, 9))
    ]
    return tuple(sorted(made, key=lambda fault: fault.at))
