"""What a report shows, as data: the same dictionary becomes ``report.json`` and the page.

Pure: takes steps, evaluations and samples as read from the ledger, computes the few numbers a
person looks for first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.report.plots import Plot, Series

Step = Mapping[str, Any]
WINDOW = 10
"""Steps averaged for the first and the last value of a noisy series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """Everything the report is made of; see ``rollout.report.gather``.

    ``steps`` are the metrics of committed steps in order, each with ``step``; ``evaluations`` one row
    per finished evaluation (name, split, step, metric, value, low, high, num_prompts);
    ``before``/``after`` the same prompts answered by the first and the last policy.
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
    evaluations: Sequence[Mapping[str, Any]]
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    dispositions: Mapping[str, int]
    chain: str
    wall_seconds: float
    versions: Mapping[str, str]


def summarise(data: ReportInput) -> dict[str, Any]:
    """The numbers of the page's head: None where the run has no such thing."""
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
        "reward_first": _mean(data.steps[:WINDOW], "reward"),
        "reward_last": _mean(data.steps[-WINDOW:], "reward"),
        "loss_first": _mean(data.steps[:WINDOW], "loss"),
        "loss_last": _mean(data.steps[-WINDOW:], "loss"),
        "tokens_per_second": _mean(data.steps, "tokens_per_second"),
        "evaluations": [first_and_last(rows) for rows in by_evaluation(data.evaluations).values()],
        "dispositions": dict(data.dispositions),
        "chain": data.chain,
    }


def by_evaluation(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """Evaluation rows by (name, split, metric), each ordered by step."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        found.setdefault((row["name"], row["split"], row["metric"]), []).append(row)
    return found


def first_and_last(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def _mean(steps: Sequence[Step], key: str) -> float | None:
    values = [float(step[key]) for step in steps if step.get(key) is not None]
    return sum(values) / len(values) if values else None


def plan_plots(data: ReportInput) -> list[Plot]:
    """The plots of this run, in reading order; a plot whose metric was never recorded is left out."""
    plots = [_evaluation_plot(data.evaluations)]
    for title, unit, keys, note in _PLOTS:
        series = [found for label, key in keys if (found := _series(data.steps, label, key))]
        if series:
            plots.append(Plot(title=title, unit=unit, series=series, note=note))
    plots.append(_phases_plot(data.steps))
    return [plot for plot in plots if plot.series]


_PLOTS: tuple[tuple[str, str, tuple[tuple[str, str], ...], str], ...] = (
    ("Reward", "mean per step", (("reward", "reward"),), "Mean over all completions of a step."),
    ("Loss", "nats", (("loss", "loss"),), "Policy loss may sit near 0 while the policy improves."),
    (
        "KL",
        "nats per token",
        (("actor vs learner", "mismatch_kl"), ("to reference", "reference_kl")),
        "mismatch_kl near 0: actors sample from the policy that is trained.",
    ),
    ("Entropy", "nats per token", (("entropy", "entropy"),), "A fast fall to 0 is collapse."),
    (
        "Completion length",
        "tokens",
        (("median", "length_p50"), ("95 %", "length_p95")),
        "",
    ),
    (
        "Clipping",
        "share of tokens",
        (("low", "clip_fraction_low"), ("high", "clip_fraction_high")),
        "",
    ),
    ("Gradient norm", "before clipping", (("norm", "gradient_norm"),), ""),
    (
        "No signal",
        "share of groups",
        (("zero variance", "zero_variance_share"),),
        "Groups whose completions all earned the same teach nothing.",
    ),
    ("Staleness", "steps", (("mean", "staleness_mean"), ("max", "staleness_max")), ""),
    ("Throughput", "tokens/s", (("tokens/s", "tokens_per_second"),), ""),
)


def _series(steps: Sequence[Step], label: str, key: str) -> Series | None:
    points = [(step["step"], float(step[key])) for step in steps if step.get(key) is not None]
    if not points:
        return None
    return Series(label=label, xs=[x for x, _ in points], ys=[y for _, y in points])


def _evaluation_plot(rows: Sequence[Mapping[str, Any]]) -> Plot:
    series = [
        Series(
            label=f"{name} {split} {metric}",
            xs=[row["step"] for row in found],
            ys=[row["value"] for row in found],
            low=[row["low"] for row in found],
            high=[row["high"] for row in found],
            markers=True,
        )
        for (name, split, metric), found in by_evaluation(rows).items()
    ]
    note = "Held-out prompts; the band is the 95 % confidence interval."
    return Plot(
        title="Evaluation",
        unit="accuracy or pass@k",
        series=series[:4],
        note=note,
        bounds=(0, 1.02),
    )


def _phases_plot(steps: Sequence[Step]) -> Plot:
    """Where the time of a step went, as shares of its wall time."""
    labels = {
        "wait": "waiting for data",
        "train": "training",
        "publish": "publish",
        "commit": "commit",
    }
    timed = [step for step in steps if isinstance(step.get("phase_seconds"), Mapping)]
    series = []
    for key, label in labels.items():
        shares = [_share(step["phase_seconds"], key) for step in timed]
        if any(shares):
            series.append(Series(label=label, xs=[step["step"] for step in timed], ys=shares))
    return Plot(
        title="Utilisation of the learner",
        unit="share of the step",
        series=series,
        stacked=True,
        bounds=(0, 1),
        note="Waiting is the time in which actors generate and the learner has nothing to do.",
    )


def _share(phases: Mapping[str, float], key: str) -> float:
    total = sum(phases.values())
    return phases.get(key, 0.0) / total if total else 0.0
