"""Learning from preferences: settings that would be ignored, or would train something else without a word."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import TRAITS
from rollout_api.v1alpha1.training.preferences import Ipo

ALGORITHM = "spec.train.algorithm"
CACHEABLE = tuple(name for name, traits in TRAITS.items() if traits.reference == "Always")
"""Algorithms on rows that compare with a reference."""
NATS_PER_TOKEN_MAX = 1.0
"""A margin per token beyond this is more than a policy near its reference ever has."""


def ipo_target(ipo: Ipo) -> float:
    """The margin 1 / (2 beta) that ipo pulls each pair to, in nats (per token with TokenMean)."""
    return 1 / (2 * ipo.beta)


def smoothing_is_used(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Sigmoid and Hinge know no label smoothing (TRL ignores it); Robust and Conservative are about it."""
    dpo = spec.train.algorithm.dpo if spec.train else None
    if dpo is None:
        return
    smooths, given = dpo.loss in ("Conservative", "Robust"), dpo.label_smoothing > 0
    if given and not smooths:
        yield Problem(
            field=f"{ALGORITHM}.dpo.labelSmoothing",
            reason="NotUsedByLoss",
            message=f"the {dpo.loss} loss has no label smoothing: {dpo.label_smoothing} would be ignored",
            fix="use loss: Conservative or Robust, or remove labelSmoothing",
        )
    if smooths and not given:
        yield Problem(
            field=f"{ALGORITHM}.dpo.labelSmoothing",
            reason="MissingField",
            message=f"the {dpo.loss} loss without labelSmoothing is the Sigmoid loss",
            fix="set labelSmoothing to the share of swapped labels you expect, such as '0.1'",
            severity=Severity.error if dpo.loss == "Robust" else Severity.warning,
        )


def ipo_margin_can_be_met(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """More than a nat per token is out of reach."""
    ipo = spec.train.algorithm.ipo if spec.train else None
    if ipo and ipo.aggregation == "TokenMean" and ipo_target(ipo) > NATS_PER_TOKEN_MAX:
        yield Problem(
            field=f"{ALGORITHM}.ipo.beta",
            reason="MarginOutOfReach",
            message=f"beta {ipo.beta:g} pulls to a margin of {ipo_target(ipo):g} nats per token, more"
            f" than {NATS_PER_TOKEN_MAX:g}: the loss pulls for ever",
            fix="use beta '0.5' or more with TokenMean",
            severity=Severity.warning,
        )


def ipo_sum_is_on_purpose(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A sum over tokens gives long answers a wider range, and the margin stays: say that this is known."""
    ipo = spec.train.algorithm.ipo if spec.train else None
    if ipo is None or (ipo.aggregation == "SequenceSum") == (ipo.answer_lengths is not None):
        return
    if ipo.answer_lengths is not None:
        yield Problem(
            field=f"{ALGORITHM}.ipo.answerLengths",
            reason="NotUsedByAggregation",
            message="with TokenMean the lengths of the answers do not matter",
            fix="remove answerLengths, or use aggregation: SequenceSum",
        )
        return
    yield Problem(
        field=f"{ALGORITHM}.ipo.aggregation",
        reason="MarginIgnoresLength",
        message=f"with SequenceSum every pair is pulled to a margin of {ipo_target(ipo):g} nats,"
        " whatever the lengths of its answers",
        fix="use TokenMean; or say answerLengths: Alike where the answers are about as long, Mixed where"
        " they are not and this is meant",
    )


def kto_step_holds_the_reference_point(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The KL term of each micro-batch depends on how the step was cut."""
    kto = spec.train.algorithm.kto if spec.train else None
    if kto is not None and kto.kl_batch == "MicroBatch":
        yield Problem(
            field=f"{ALGORITHM}.kto.klBatch",
            reason="DependsOnMicroBatches",
            message="with klBatch MicroBatch the result depends on microBatchTokens and on the ranks",
            fix="use Step, unless it is to be compared with TRL",
            severity=Severity.warning,
        )


def offline_reference_is_read(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A reference beside an algorithm that compares with none."""
    train = spec.train
    if train is None or train.algorithm.is_online or train.reference is None:
        return
    if not train.algorithm.uses_reference:
        yield Problem(
            field="spec.train.reference",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} compares with no reference",
            fix="remove reference, or use dpo, ipo or kto",
        )


def margins_are_read(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Only reward models take margins from the data."""
    train = spec.train
    data = train.data.value if train and train.data else None
    if train and data and data.margin_field is not None and not train.algorithm.traits.margins:
        yield Problem(
            field=f"spec.train.data.{train.data.chosen if train.data else ''}.marginField",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} reads no margins from the data",
            fix="remove marginField, or use rm",
        )


def held_out_rows_exist(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Measuring needs rows that are held out, in a run that learns from rows."""
    train = spec.train
    if train is None or train.held_out is None:
        return
    if train.algorithm.is_online:
        yield Problem(
            field="spec.train.heldOut",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} learns from its own answers; held-out rows have none",
            fix="use evaluations",
        )
    elif train.data is None or train.data.eval_fraction == 0:
        yield Problem(
            field="spec.train.data.evalFraction",
            reason="MissingField",
            message="heldOut measures on rows that are held out, and none are",
            fix="set evalFraction, such as '0.1'",
        )


def reward_models_answer_nothing(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A reward model has no language head: nothing can be sampled from it."""
    if spec.trains_scorer and spec.evaluations:
        yield Problem(
            field="spec.evaluations",
            reason="NothingToSample",
            message="a reward model generates no text, and evaluations score generated text",
            fix="remove evaluations; heldOut measures its accuracy on held-out pairs",
        )


def cached_reference_is_asked_again(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What is sampled is never sampled again, and some losses have no reference."""
    train = spec.train
    if train is None or not train.cache_reference:
        return
    if train.algorithm.chosen not in CACHEABLE:
        yield Problem(
            field="spec.train.cacheReference",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} asks no reference about rows that come again",
            fix=f"remove it, or use one of {', '.join(CACHEABLE)}",
        )


RULES = (
    smoothing_is_used,
    ipo_margin_can_be_met,
    ipo_sum_is_on_purpose,
    kto_step_holds_the_reference_point,
    offline_reference_is_read,
    cached_reference_is_asked_again,
    margins_are_read,
    held_out_rows_exist,
    reward_models_answer_nothing,
)
