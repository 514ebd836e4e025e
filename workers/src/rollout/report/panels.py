"""Which plots a report shows, in reading order. Pure: a plot whose metric was never recorded is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rollout.report.data import ReportInput, Rows, Step, by_evaluation, headlines
from rollout.report.plots import COLOURS, Plot, Series

PHASES = {
    "wait": "waiting for data",
    "train": "training",
    "publish": "publishing weights",
    "commit": "committing",
    "anchor": "saving",
    "resume": "resuming",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One line plot: series by label and metric. ``span_min``: no smaller range of y is magnified."""

    title: str
    unit: str
    series: Mapping[str, str]
    note: str = ""
    from_zero: bool = True
    span_min: float = 0.0


PANELS = (
    Panel(
        title="Reward",
        unit="mean per step",
        series={"reward": "reward"},
        note="Mean over all completions of a step, weighted sum of the sources.",
        from_zero=False,
        span_min=0.1,
    ),
    Panel(
        title="Loss",
        unit="nats",
        series={"loss": "loss", "held out": "eval_loss"},
        note="Per token; of preferences, per pair or answer.",
        from_zero=False,
    ),
    Panel(
        title="Preference accuracy",
        unit="share of pairs",
        series={"trained on": "preference_accuracy", "held out": "eval_preference_accuracy"},
        note="Pairs whose chosen answer has the higher reward; 0.5 is chance.",
        span_min=0.1,
    ),
    Panel(
        title="Preference margin",
        unit="chosen minus rejected",
        series={"trained on": "reward_margin", "held out": "eval_reward_margin"},
        from_zero=False,
        span_min=0.1,
    ),
    Panel(
        title="KL",
        unit="nats per token",
        series={
            "actor vs learner": "mismatch_kl",
            "to reference": "reference_kl",
            "to teacher": "teacher_kl",
        },
        note="Actor vs learner near 0: actors sample from the policy that is trained.",
        span_min=1e-3,
    ),
    Panel(
        title="Entropy",
        unit="nats per token",
        series={"entropy": "entropy"},
        note="A fast fall to 0 is collapse.",
        span_min=0.1,
    ),
    Panel(
        title="Completion length",
        unit="tokens",
        series={"median": "length_p50", "95 %": "length_p95", "longest": "length_max"},
        span_min=1,
    ),
    Panel(
        title="Clipping",
        unit="share of tokens",
        series={"low": "clip_fraction_low", "high": "clip_fraction_high"},
        note="0 where each batch is used for one update: the ratio is 1.",
        span_min=0.01,
    ),
    Panel(
        title="Gradient norm",
        unit="before clipping",
        series={"norm": "gradient_norm"},
        note="Clipped at train.maxGradNorm.",
    ),
    Panel(
        title="Critic",
        unit="explained variance",
        series={"critic": "explained_variance"},
        note="1 foresees every return, 0 knows their mean, below 0 is worse than that.",
        from_zero=False,
        span_min=0.1,
    ),
    Panel(
        title="Value loss",
        unit="squared reward",
        series={"value loss": "value_loss"},
        note="Half the squared error of the critic, clipped around its values before the step.",
    ),
    Panel(
        title="KL coefficient",
        unit="reward per nat",
        series={"coefficient": "kl_coefficient"},
    ),
    Panel(
        title="No signal",
        unit="share of groups",
        series={"zero variance": "zero_variance_share"},
        note="Groups whose completions all earned the same teach nothing.",
        span_min=1,
    ),
    Panel(
        title="Staleness",
        unit="steps",
        series={"mean": "staleness_mean", "max": "staleness_max"},
        note="Age of what was trained on; 0 is on-policy.",
        span_min=1,
    ),
    Panel(
        title="Retokenised",
        unit="share of samples",
        series={"other tokens": "retokenised_share"},
        note="Samples whose text, encoded again, would be other tokens; training is on the sampled ones.",
        span_min=1,
    ),
    Panel(
        title="Throughput",
        unit="tokens/s",
        series={"tokens/s": "tokens_per_second"},
        note="Prompt and completion tokens of a step over its wall time.",
    ),
)
NOTES = {
    ("Loss", "SFT"): "Cross-entropy of the tokens that are trained on.",
    ("Loss", "GRPO"): "A policy loss may sit near 0 while the policy improves.",
    ("Completion length", "SFT"): "Prompt and answer together: the rows as trained on.",
}


def plan_plots(data: ReportInput) -> list[Plot]:
    """The plots of this run."""
    plots = [_evaluation_plot(data.evaluations), *_lines(data), _phases_plot(data.steps)]
    return [plot for plot in plots if plot.series]


def _lines(data: ReportInput) -> Iterator[Plot]:
    for panel in PANELS:
        yield Plot(
            title="Row length" if _is_rows(panel, data) else panel.title,
            unit=panel.unit,
            series=list(_series_of(panel, data.steps)),
            note=NOTES.get((panel.title, data.algorithm), panel.note),
            from_zero=panel.from_zero,
            span_min=panel.span_min,
        )
        if panel.title == "Reward":
            yield _sources_plot(data.steps)


def _is_rows(panel: Panel, data: ReportInput) -> bool:
    return (panel.title, data.algorithm) == ("Completion length", "SFT")


def _series_of(panel: Panel, steps: Sequence[Step]) -> Iterator[Series]:
    for label, key in panel.series.items():
        points = [(step["step"], float(step[key])) for step in steps if step.get(key) is not None]
        if points:
            yield Series(label=label, xs=[x for x, _ in points], ys=[y for _, y in points])


def _sources_plot(steps: Sequence[Step]) -> Plot:
    """The sources of reward apart, where there is more than one."""
    given = [(step["step"], step.get("reward_by_source") or {}) for step in steps]
    names = list(dict.fromkeys(name for _, rewards in given for name in rewards))
    series = [
        Series(
            label=name,
            xs=[step for step, rewards in given if name in rewards],
            ys=[float(rewards[name]) for _, rewards in given if name in rewards],
        )
        for name in names[: len(COLOURS)]
    ]
    return Plot(
        title="Reward by source",
        unit="mean, unweighted",
        series=series if len(series) > 1 else (),
        span_min=0.1,
    )


def _evaluation_plot(rows: Rows) -> Plot:
    series = [
        Series(
            label=f"{name} {split} {metric}",
            xs=[row["step"] for row in found],
            ys=[row["value"] for row in found],
            low=[row["low"] for row in found],
            high=[row["high"] for row in found],
            markers=True,
        )
        for (name, split, metric), found in by_evaluation(headlines(rows)).items()
    ]
    return Plot(
        title="Evaluation",
        unit="share correct",
        series=series[: len(COLOURS)],
        note="Held-out prompts; the band is the 95 % confidence interval.",
        bounds=(0, 1.02),
    )


def _phases_plot(steps: Sequence[Step]) -> Plot:
    """Where the time of a step went, as shares of its wall time."""
    timed = [step for step in steps if isinstance(step.get("phase_seconds"), Mapping)]
    series = []
    for key, label in PHASES.items():
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
