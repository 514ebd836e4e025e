"""What may be another way in a run that begins with a snapshot, and what that costs: the table is ``RULES``.

What is no part of a run's identity (steps, actors, evaluations, tracking, storage, limits) may always change, and costs
nothing. A change of its identity is free of cost never: the run is graded logical. What the saved state, its place in the
data or its finished samples hold on to is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout.errors import SnapshotRefused
from rollout.snapshots.manifest import RunFacts

Verdict = Literal["logical", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``field`` is a path of the run's identity, and holds for all below it; the longest one that fits decides."""

    field: str
    verdict: Verdict
    reason: str


RULES = (
    Rule(field="train.optimizer", verdict="logical", reason="moments go on under other settings"),
    Rule(field="train.algorithm", verdict="logical", reason="another objective from here on"),
    Rule(field="train.rewards", verdict="logical", reason="finished samples keep their rewards"),
    Rule(field="train.oldLogprobs", verdict="logical", reason="another objective from here on"),
    Rule(
        field="train.importanceSampling", verdict="logical", reason="another objective from here on"
    ),
    Rule(field="train.maxStaleness", verdict="logical", reason="samples come in another order"),
    Rule(field="numerics", verdict="logical", reason="sums are taken in another order"),
    Rule(field="engine", verdict="logical", reason="another engine samples"),
    Rule(field="ranks", verdict="logical", reason="sums are taken in another order"),
    Rule(field="strategy", verdict="logical", reason="sums are taken in another order"),
    Rule(field="sequenceParallel", verdict="logical", reason="sums are taken in another order"),
    Rule(field="model", verdict="refused", reason="the saved weights are of that model"),
    Rule(
        field="seed",
        verdict="refused",
        reason="a restored run keeps the noise and the order of its root",
    ),
    Rule(
        field="train.data", verdict="refused", reason="the place in the data would mean other rows"
    ),
    Rule(
        field="train.environment",
        verdict="refused",
        reason="finished samples are of that environment",
    ),
    Rule(
        field="train.sampling",
        verdict="refused",
        reason="finished samples were drawn with these settings",
    ),
    *(
        Rule(
            field=f"train.algorithm.{kind}.{size}",
            verdict="refused",
            reason="open groups and the place in the data are counted in it",
        )
        for kind in ("grpo", "ppo", "distill", "sft", "rm", "dpo", "ipo", "kto", "orpo", "simpo")
        for size in ("promptsPerStep", "groupSize", "batchSize", "tailBatch")
    ),
)
"""What no rule names is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that is not as it was saved."""

    field: str
    rule: Rule


def find_changes(saved: RunFacts, identity: Mapping[str, Any]) -> tuple[Change, ...]:
    """What of a run's identity is not the snapshot's. Raises SnapshotRefused for another algorithm, or another form."""
    before, after = saved.identity, identity
    if before.get("format") != after.get("format"):
        raise SnapshotRefused(
            f"the snapshot's run has identity format {before.get('format')}, this version of rollout writes"
            f" {after.get('format')}: restore it with the version that wrote it"
        )
    fields = sorted(_differences(before, after, ""))
    return tuple(Change(field=field, rule=_rule(field)) for field in fields)


def check_changes(
    saved: RunFacts, identity: Mapping[str, Any], contents: Mapping[str, str | None], dtype: str
) -> tuple[Change, ...]:
    """Those changes that may be, of which each costs the grade. Raises SnapshotRefused that names all that may not."""
    changes = find_changes(saved, identity)
    refused = [
        f"spec.{one.field} ({one.rule.reason})" for one in changes if one.rule.verdict == "refused"
    ]
    refused += [
        f"the content of {field} (was {saved.contents[field]}, is {digest})"
        for field, digest in contents.items()
        if saved.contents.get(field, digest) != digest
    ]
    if saved.dtype != dtype:
        refused.append(f"the number format (was {saved.dtype}, is {dtype})")
    if refused:
        raise SnapshotRefused(
            f"a run that begins with this snapshot of {saved.name} may not change: {'; '.join(refused)}; take"
            " that back, or start a new run from the model"
        )
    return changes


def _differences(before: Any, after: Any, path: str) -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for name in sorted({*before, *after})
            for found in _differences(
                before.get(name), after.get(name), f"{path}.{name}".strip(".")
            )
        ]
    return [] if before == after else [path]


def _rule(field: str) -> Rule:
    fits = [one for one in RULES if f"{field}.".startswith(f"{one.field}.")]
    if field.count(".") == 2 and field.startswith("train.algorithm."):
        return Rule(field=field, verdict="refused", reason="the state is of another algorithm")
    unknown = Rule(field=field, verdict="refused", reason="the saved state depends on it")
    return max(fits, key=lambda one: len(one.field), default=unknown)
