"""The curves of a model's steps as plots that ``charts`` draws. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rollout.report.plots import Plot, Series
from rollout.service.reading.curves import LongCurve
from rollout.service.reading.folding import StepCurves

STRETCH_NOTE = " Of {width} steps each: their mean, and a band from the lowest to the highest."


def plan_curves(curves: StepCurves) -> Iterator[Plot]:
    """The plots of a model that has taken a step."""
    yield from _plot(
        "Loss",
        "sum over tokens",
        curves.loss,
        "Of all calls that a step was taken on. Sums, as the protocol has them: they grow with the tokens of a step.",
    )
    yield from _plot(
        "Loss by token",
        "nats",
        curves.token_loss,
        "The sum by the tokens of the step, those that weigh 0 among them.",
    )
    yield from _plot("Gradient norm", "before clipping", curves.gradient_norm, from_zero=True)
    yield from _plot("Tokens", "of a step", curves.tokens, from_zero=True)
    yield from _plot("Learning rate", "of a step", curves.learning_rate, from_zero=True)


def _plot(
    title: str, unit: str, curve: LongCurve, note: str = "", *, from_zero: bool = False
) -> Iterator[Plot]:
    found = list(curve.stretches())
    if not found:
        return
    single = curve.width == 1
    series = Series(
        label=title.lower(),
        xs=[(one.first + one.last) // 2 for one in found],
        ys=[one.mean for one in found],
        low=None if single else [one.low for one in found],
        high=None if single else [one.high for one in found],
    )
    wide = "" if single else STRETCH_NOTE.format(width=curve.width)
    yield Plot(
        title=title, unit=unit, series=[series], note=f"{note}{wide}".strip(), from_zero=from_zero
    )
