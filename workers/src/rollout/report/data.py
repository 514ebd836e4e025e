"""What a report says in numbers: the head of ``report.json`` and of the page.

Pure: takes steps, evaluations and samples as read from the ledger, computes the few numbers a
person looks for first. What is drawn is decided in ``panels``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout.coordinator.rules.learning import StepSignal, judge_learning
from rollout.evaluations.statistics import CORRECT_MIN
from rollout.report.lengths import describe_lengths, length_warnings

Step = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
WINDOW = 10
"""Steps averaged for the first and the last value of a noisy series."""

DISPOSITIONS = {
    "consumed": "trained on",
    "filtered": "left out of a batch by rule: its group had nothing to compare, or its length",
    "expired": "too old when its step came",
    "excluded": "lost to a failure outside the policy, after every retry; never scored",
    "surplus": "not needed: the batch was full, or the run ended",
    "pending": "not decided yet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """Everything the report is made of; see ``rollout.report.gather``.

    ``steps`` are the metrics of committed steps in order, each with ``step``; ``evaluations`` one row
    per finished evaluation (name, split, step, metric, value, low, high, num_prompts);
    ``before``/``after`` the same prompts answered by the first and the last policy, ``after`` alone where there is one; ``best`` the
    content of ``Best.json``, None when no evaluation chooses; ``contents`` digests of models and data;
    ``plugin_notes`` are what was said last of plugins that have changed;
    ``removed`` says what is no longer kept: of steps up to ``step`` so many ``bodies`` of so many ``bytes``.
    """

    name: str
    uid: str
    outcome: str
    reason: str
    grade: str
    algorithm: str
    model: str
    spec: Mapping[str, Any]
    steps: Sequence[Step]
    evaluations: Rows
    before: Rows
    after: Rows
    dispositions: Mapping[str, int]
    chain: str
    wall_seconds: float
    versions: Mapping[str, str]
    best: Mapping[str, Any] | None = None
    contents: Mapping[str, str] = field(default_factory=dict)
    plugin_notes: Sequence[str] = ()
    lengths: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether the run has steps; one that only evaluates has none."""
        return "evaluate" not in self.spec


def summarise(data: ReportInput) -> dict[str, Any]:
    """The numbers of the page's head: None where the run has no such thing.

    ``window`` is how many steps the first and the last value are means of; a short run is cut in halves.
    """
    window = max(1, min(WINDOW, len(data.steps) // 2))
    return {
        "name": data.name,
        "uid": data.uid,
        "outcome": data.outcome,
        "reason": data.reason,
        "grade": data.grade,
        "algorithm": data.algorithm,
        "model": data.model,
        "steps": len(data.steps),
        "wall_seconds": round(data.wall_seconds, 1),
        "window": window,
        "reward_first": _mean(data.steps[:window], "reward"),
        "reward_last": _mean(data.steps[-window:], "reward"),
        "reward_costs": sum_costs(data.steps),
        "plugins": count_plugins(data.steps),
        "plugin_notes": list(data.plugin_notes),
        "loss_first": _mean(data.steps[:window], "loss"),
        "loss_last": _mean(data.steps[-window:], "loss"),
        "tokens_per_second": _mean(data.steps, "tokens_per_second"),
        "evaluations": [first_and_last(rows) for rows in by_evaluation(data.evaluations).values()],
        "best": describe_best(data.best, data.evaluations),
        "warnings": list(warnings(data)),
        "dispositions": dict(data.dispositions),
        "lengths": describe_lengths(data.lengths),
        "removed": dict(data.removed),
        "chain": data.chain,
    }


def sum_costs(steps: Sequence[Step]) -> dict[str, float]:
    """What the rewards of all steps cost together, as ``source/name``; empty where nothing was asked that costs."""
    totals: dict[str, float] = {}
    for step in steps:
        for name, value in (step.get("reward_costs") or {}).items():
            totals[name] = totals.get(name, 0.0) + float(value)
    return dict(sorted(totals.items()))


def count_plugins(steps: Sequence[Step]) -> dict[str, dict[str, int]]:
    """Samples that were trained on, by plugin and the digest of the version that played or scored them.

    In the order of their first use; empty where versions do not change.
    """
    counts: dict[str, dict[str, int]] = {}
    for step in steps:
        for path, of in (step.get("plugins") or {}).items():
            known = counts.setdefault(path, {})
            for digest, number in of.items():
                known[digest] = known.get(digest, 0) + int(number)
    return counts


def by_evaluation(rows: Rows) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """Evaluation rows by (name, split, metric), each ordered by step."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        found.setdefault((row["name"], row["split"], row["metric"]), []).append(row)
    return found


def headlines(rows: Rows) -> list[Mapping[str, Any]]:
    """The rows of each evaluation's accuracy and of its largest pass@k: the rest lies between."""
    largest: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["name"], row["split"])
        largest[key] = max(largest.get(key, 0), _k(row["metric"]))
    return [row for row in rows if _k(row["metric"]) in {0, largest[row["name"], row["split"]]}]


def _k(metric: str) -> int:
    """The k of ``pass@k``; 0 for another metric."""
    k = metric.removeprefix("pass@")
    return int(k) if k != metric and k.isdigit() else 0


def first_and_last(rows: Rows) -> dict[str, Any]:
    """One evaluation's way from its first to its last value, with both intervals."""
    first, last = rows[0], rows[-1]
    keys = ("step", "value", "low", "high")
    return {
        "name": first["name"],
        "split": first["split"],
        "metric": first["metric"],
        "num_prompts": last["num_prompts"],
        "first": {key: first[key] for key in keys},
        "last": {key: last[key] for key in keys},
    }


def describe_best(best: Mapping[str, Any] | None, evaluations: Rows) -> dict[str, Any] | None:
    """Which step was chosen, by what, and what its version reached on the splits that only report."""
    if best is None:
        return None
    return {
        **{key: best[key] for key in ("step", "evaluation", "split", "metric", "value")},
        "reported": [
            dict(row)
            for row in headlines(evaluations)
            if row["split"] == "report" and row["step"] == best["step"]
        ],
    }


def warnings(data: ReportInput) -> tuple[str, ...]:
    """What a reader must know before believing the curves."""
    found: list[str] = []
    learning = judge_learning([_signal(step) for step in data.steps if _has_groups(step)])
    if not learning.signal:
        found.append(f"No learning signal: {learning.message}.")
    lineage = max((step.get("lineage", 0) for step in data.steps), default=0)
    if lineage:
        found.append(
            f"After a restart the learner met other digests than it had committed {lineage} "
            f"time{'s' if lineage > 1 else ''}: equality with another run is not claimed."
        )
    excluded = data.dispositions.get("excluded", 0)
    if excluded:
        found.append(f"{excluded} samples were lost to failures outside the policy.")
    return (*found, *length_warnings(describe_lengths(data.lengths)))


def _has_groups(step: Step) -> bool:
    return bool(step.get("num_groups")) and step.get("zero_variance_share") is not None


def _signal(step: Step) -> StepSignal:
    groups = int(step["num_groups"])
    return StepSignal(
        num_groups=groups,
        num_informative=round(groups * (1 - step["zero_variance_share"])),
        reward_min=float(step.get("reward_min", 0.0)),
        reward_max=float(step.get("reward_max", 0.0)),
    )


def is_right(sample: Mapping[str, Any]) -> bool:
    """Whether an answer counts as correct, as evaluations count."""
    return bool(sample["reward"] >= CORRECT_MIN)


def _mean(steps: Sequence[Step], key: str) -> float | None:
    values = [float(step[key]) for step in steps if step.get(key) is not None]
    return sum(values) / len(values) if values else None
