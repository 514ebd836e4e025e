"""Algorithms that learn from preferences, with their knobs: meaning, unit, range, and the default with its source."""

from typing import ClassVar, Literal

from rollout_api.base import ApiModel, Real, filled
from rollout_api.v1alpha1.training.traits import Traits


class Rm(ApiModel):
    """Bradley-Terry reward model: -log sigmoid(chosen - rejected - margin) per pair."""

    traits: ClassVar[Traits] = Traits(
        row="pair",
        margins=True,
        scores=True,
        learning_rate="0.0001",
        tiny_learning_rate="0.003",
    )
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Pairs per optimizer step, over all ranks."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer pairs are dropped and counted."""
    centering_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of (chosen + rejected)^2, which keeps scores around 0; 0 is off (Eisenstein 2023: 0.01)."""


class Dpo(ApiModel):
    """Direct preference optimization (Rafailov 2023) on summed logprobs against a reference."""

    traits: ClassVar[Traits] = Traits(row="pair", reference="Always")
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Pairs per optimizer step, over all ranks."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer pairs are dropped and counted."""
    beta: Real = filled(0.1, gt=0, le=100)
    """Strength of the pull to the reference; larger stays closer (paper: 0.1)."""
    loss: Literal["Sigmoid", "Conservative", "Robust", "Hinge"] = filled("Sigmoid")
    """Form of the loss; `Conservative` and `Robust` use `labelSmoothing`."""
    label_smoothing: Real = filled(0.0, ge=0, lt=0.5)
    """Assumed share of swapped labels; used by `Conservative` and `Robust` only."""
    sft_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of an added likelihood loss on the chosen answer; 0 is off."""


class Ipo(ApiModel):
    """Identity preference optimization (Azar 2023): (margin - 1/(2 beta))^2."""

    traits: ClassVar[Traits] = Traits(row="pair", reference="Always")
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Pairs per optimizer step, over all ranks."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer pairs are dropped and counted."""
    beta: Real = filled(0.1, gt=0, le=100)
    """Sets the target margin 1/(2 beta), in nats (per token with `TokenMean`)."""
    aggregation: Literal["TokenMean", "SequenceSum"] = filled("TokenMean")
    """Logprobs of an answer averaged per token (TRL) or summed (the paper's formula)."""
    answer_lengths: Literal["Alike", "Mixed"] | None = None
    """To be said with `SequenceSum`, which pulls every pair to one margin whatever the lengths of its
    answers: that these are alike in the data, or that they differ and it is meant. Unset with `TokenMean`."""


class Kto(ApiModel):
    """Kahneman-Tversky optimization (Ethayarajh 2024) on unpaired good and bad answers."""

    traits: ClassVar[Traits] = Traits(row="label", reference="Always")
    batch_size: int = filled(16, ge=2, le=1_048_576)
    """Rows per optimizer step, over all ranks; at least 2, since the KL term pairs rows."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer rows are dropped and counted."""
    beta: Real = filled(0.1, gt=0, le=100)
    """Risk aversion; larger stays closer to the reference (paper: 0.1)."""
    desirable_weight: Real = filled(1.0, gt=0, le=100)
    """Weight of good answers (paper: desirable x count between 1 and 4/3 of the other side)."""
    undesirable_weight: Real = filled(1.0, gt=0, le=100)
    """Weight of bad answers."""
    kl_batch: Literal["Step", "MicroBatch"] = filled("Step")
    """Rows over which the KL term is estimated: the whole step, or each micro-batch as TRL does."""


class Orpo(ApiModel):
    """Odds ratio preference optimization (Hong 2024) on pairs: likelihood plus odds ratio, no reference."""

    traits: ClassVar[Traits] = Traits(row="pair", learning_rate="8e-06")
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Pairs per optimizer step, over all ranks."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer pairs are dropped and counted."""
    beta: Real = filled(0.1, gt=0, le=100)
    """Weight of the odds ratio against the likelihood of the chosen answer (paper's lambda: 0.1)."""


class Simpo(ApiModel):
    """Simple preference optimization (Meng 2024) on pairs: mean logprobs above a margin, no reference."""

    traits: ClassVar[Traits] = Traits(row="pair")
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Pairs per optimizer step, over all ranks."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest prompt and answer in tokens; longer pairs are dropped and counted."""
    beta: Real = filled(2.0, gt=0, le=100)
    """Scale of the mean logprobs (paper: 2.0 to 10)."""
    gamma: Real = filled(1.0, ge=0, le=100)
    """Wanted margin between the scaled means (paper: begin with gamma / beta 0.5; TRL: 0.5)."""
