"""What a person wants to see of a run at a glance: pure functions of the coordinator's status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollout.protocol.status import EvaluationStatus, InferStatus, Status, rank_waits

WAIT_SECONDS_SHOWN = 1.0
"""Shorter waits are the normal beat of a synchronous run and not shown."""
SAID_PHASES = frozenset({"Evaluating", "Finishing", "Stopping", "Stopped", "Failed"})
"""Phases in which no step is made, and a person should know why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One labelled value of a progress block."""

    label: str
    value: str


def render_facts(status: Status) -> tuple[Fact, ...]:
    """What a person wants to see at a glance, most important first; unknown values are left out."""
    if status.infer is not None:
        return _render_batch(status, status.infer)
    facts = (
        Fact(label="step", value=_step(status)),
        Fact(label="run", value=_phase_without_steps(status)),
        Fact(label="reward", value=_number(status.reward)),
        Fact(label="loss", value=_number(status.loss)),
        Fact(label="tokens/s", value=_rate(status.tokens_per_second)),
        Fact(label="eta", value=_eta(status)),
        Fact(label="bottleneck", value=_bottleneck(status)),
        Fact(label="actors", value=_actors(status)),
        Fact(label="waiting", value=_waits(status)),
        Fact(label="eval", value=_evaluation(status)),
        Fact(label="says", value=_conditions(status)),
    )
    return tuple(fact for fact in facts if fact.value)


def _render_batch(status: Status, infer: InferStatus) -> tuple[Fact, ...]:
    """Of an inference run: its rows instead of steps."""
    rows = f"{infer.num_done}/{infer.num_rows}"
    facts = (
        Fact(label="rows", value=f"{rows} ({status.phase.lower()})"),
        Fact(label="failed", value=str(infer.num_failed) if infer.num_failed else ""),
        Fact(label="tokens", value=str(infer.num_tokens)),
        Fact(
            label="eta",
            value="" if infer.seconds_left is None else render_seconds(infer.seconds_left),
        ),
        Fact(label="waiting", value=_waits(status)),
    )
    return tuple(fact for fact in facts if fact.value)


def render_line(status: Status) -> str:
    """One line of plain text."""
    return "  ".join(f"{fact.label} {fact.value}" for fact in render_facts(status))


def _step(status: Status) -> str:
    if status.steps_max == 0:
        return ""
    if status.step == 0 and status.phase != "Running":
        return f"0 ({status.phase.lower()})"
    step = str(status.step) if status.steps_max is None else f"{status.step}/{status.steps_max}"
    return f"{step} ({status.phase.lower()})" if status.phase in SAID_PHASES else step


def _phase_without_steps(status: Status) -> str:
    """Of a run that only evaluates: it has no step that would say it."""
    return status.phase.lower() if status.steps_max == 0 else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _rate(value: float | None) -> str:
    if not value:
        return ""
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"


def _eta(status: Status) -> str:
    if status.seconds_per_step is None or status.steps_max is None or status.step == 0:
        return ""
    left = status.steps_max - status.step if status.outcome is None else 0
    return render_seconds(status.seconds_per_step * left) if left > 0 else ""


def render_seconds(seconds: float) -> str:
    """``1h02m``, ``3m07s`` or ``12s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def _waits(status: Status) -> str:
    long = [one for one in rank_waits(status) if one.seconds >= WAIT_SECONDS_SHOWN]
    if not long or status.outcome is not None:
        return ""
    one = long[0]
    return f"{render_seconds(one.seconds)}: {one.who} for {one.what}: {one.culprit}"


def _bottleneck(status: Status) -> str:
    if status.bottleneck == "Balanced" or status.outcome is not None:
        return ""
    return status.bottleneck.lower()


def _actors(status: Status) -> str:
    if status.actors_wanted is None or status.outcome is not None:
        return ""
    working = [w for w in status.workers if w.role == "actor" and w.alive]
    return f"{len(working)} of {status.actors_wanted} wanted"


def _evaluation(status: Status) -> str:
    """The newest result, then what is being measured."""
    done = [one for one in status.evaluations if one.num_total and one.num_done >= one.num_total]
    going = [one for one in status.evaluations if one.num_done < one.num_total]
    shown = done if status.steps_max == 0 else _newest(done)
    said = [f"{one.name} {headline(one)}{_at(status, one)}" for one in shown]
    said += [f"{one.name} {one.num_done}/{one.num_total}{_at(status, one)}" for one in going[:1]]
    return "; ".join(said)


def _at(status: Status, evaluation: EvaluationStatus) -> str:
    return "" if status.steps_max == 0 else f" at step {evaluation.step}"


def _newest(evaluations: Iterable[EvaluationStatus]) -> list[EvaluationStatus]:
    return sorted(evaluations, key=lambda one: (one.lineage, one.step))[-1:]


def headline(evaluation: EvaluationStatus) -> str:
    """The number that stands for an evaluation: its accuracy, else its first metric."""
    metrics = evaluation.metrics
    for name in ("accuracy", *metrics):
        value = metrics.get(name)
        value = value.get("value") if isinstance(value, dict) else value
        if isinstance(value, int | float):
            return f"{value:.3f}"
    return "done"


def _conditions(status: Status) -> str:
    bad = [one for one in status.conditions if not one.status]
    return "; ".join(f"{one.reason}: {one.message}" for one in bad)
