"""The objectives of the GRPO family, each with its numbers: what is made of ratio and advantage."""

from rollout_api.base import ApiModel, Name, OneOf, Real, filled, many
from rollout_api.v1alpha1.common import Parameters


class ClippedSurrogate(ApiModel):
    """The ratio is clipped on the side where it would run away (Schulman 2017).

    Its bounds are `clipLow`, `clipHigh` and `dualClip` beside it.
    """


class CispoAbsolute(ApiModel):
    """The ratio is held at or below a bound, as in TRL and ScaleRL; no lower bound."""

    ratio_max: Real = filled(5.0, gt=0, le=1000)
    """Largest ratio (ScaleRL: 5). It is the ratio itself: below 1 every token is scaled down."""


class CispoRelative(ApiModel):
    """The ratio is held in [1 - clipLow, 1 + clipHigh], as in MiniMax-M1 and verl."""

    clip_low: Real = filled(10.0, ge=0, le=1000)
    """Distance of the lower bound from 1; 1 or more is no bound (verl: 10)."""
    clip_high: Real = filled(0.2, ge=0, le=1000)
    """Distance of the upper bound from 1 (verl: 0.2)."""


class Cispo(OneOf):
    """The clipped ratio only weighs the policy gradient, so that no token loses it (MiniMax-M1 2025).

    Two conventions of its bounds are published, and one of them must be named.
    """

    absolute: CispoAbsolute | None = None
    """A bound of the ratio itself."""
    relative: CispoRelative | None = None
    """Bounds as distances from 1."""


class Sapo(ApiModel):
    """A smooth gate around ratio 1 instead of a clip (Soft Adaptive Policy Optimization 2025)."""

    temperature_positive: Real = filled(1.0, gt=0, le=1000)
    """How fast the gate closes where the advantage is positive (paper: 1.0)."""
    temperature_negative: Real = filled(1.05, gt=0, le=1000)
    """The same for all other tokens (paper: 1.05)."""


class Gmpo(ApiModel):
    """The geometric mean of a completion's clipped ratios (Geometric-Mean Policy Optimization 2025)."""

    log_clip_low: Real = filled(0.4, gt=0, le=20)
    """A token's log ratio counts down to minus this (paper: 0.4)."""
    log_clip_high: Real = filled(0.4, gt=0, le=20)
    """A token's log ratio counts up to this (paper: 0.4)."""


class Vespo(ApiModel):
    """A smooth weight w^k exp(lambda (1 - w)) of the completion's ratio w (VESPO 2026)."""

    k_positive: Real = filled(2.0, ge=0, le=1000)
    """Power for advantages of 0 or more: lowers completions that became less likely (paper: 2)."""
    lambda_positive: Real = filled(3.0, gt=0, le=1000)
    """Decay for advantages of 0 or more: lowers completions that became likelier (paper: 3)."""
    k_negative: Real = filled(3.0, ge=0, le=1000)
    """Power for negative advantages (paper: 3)."""
    lambda_negative: Real = filled(2.0, gt=0, le=1000)
    """Decay for negative advantages (paper: 2)."""


class Dppo(ApiModel):
    """Tokens whose probability moved too far are left out (Divergence PPO 2026; prime-rl's default)."""

    mask_low: Real = filled(0.2, ge=0, le=1)
    """Largest fall of a token's probability that counts, where the advantage is negative."""
    mask_high: Real = filled(0.2, ge=0, le=1)
    """Largest rise of a token's probability that counts, where the advantage is positive."""
    drift_coefficient: Real = filled(1e-3, ge=0, le=100)
    """Weight of the squared log ratio, of all tokens (prime-rl: 0.001); 0 is off."""


class CustomSurrogate(ApiModel):
    """A function of the user's, installed under the entry-point group `rollout.algorithms`."""

    name: Name
    """Name of the entry point."""
    parameters: Parameters = many(64, key="name")
    """Fields of its settings, as text."""


class Surrogate(OneOf):
    """The objective: what is made of a token's ratio and advantage."""

    clipped: ClippedSurrogate | None = None
    """PPO's clip; the default."""
    cispo: Cispo | None = None
    """Clipped importance weights on the policy gradient."""
    sapo: Sapo | None = None
    """A smooth gate in place of the clip."""
    gmpo: Gmpo | None = None
    """Geometric mean over the completion."""
    vespo: Vespo | None = None
    """A smooth weight of the completion's ratio."""
    dppo: Dppo | None = None
    """A mask by change of probability."""
    custom: CustomSurrogate | None = None
    """An objective of the user's own."""
