"""From the manifest's ``surrogate`` to the objective that the loss calls: one entry a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rollout.algorithms.surrogate import Surrogate
from rollout.algorithms.surrogates import cispo
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.dppo import Dppo
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo
from rollout.plugins.user_algorithms import load_algorithm
from rollout_api.v1alpha1.training.algorithms import Grpo

T = TypeVar("T")


def build_surrogate(grpo: Grpo) -> Surrogate:
    """The objective with its numbers. Raises SpecError for a user's that is not installed."""
    return BUILDERS[grpo.surrogate.chosen](grpo)


def vanishes(surrogate: Surrogate) -> bool:
    """Whether a token of advantage 0 has no gradient, so that silent groups need no backward."""
    if isinstance(surrogate, Dppo):
        return surrogate.drift_coefficient == 0
    return isinstance(surrogate, Clipped | Cispo | Sapo | Gmpo | Vespo)


def _clipped(grpo: Grpo) -> Surrogate:
    return Clipped(low=grpo.clip_low, high=grpo.clip_high, dual=grpo.dual_clip)


def _cispo(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.cispo)
    if said.absolute is not None:
        return Cispo(ratio_max=said.absolute.ratio_max)
    bounds = _said(said.relative)
    return cispo.relative(clip_low=bounds.clip_low, clip_high=bounds.clip_high)


def _sapo(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.sapo)
    return Sapo(
        temperature_positive=said.temperature_positive,
        temperature_negative=said.temperature_negative,
    )


def _gmpo(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.gmpo)
    return Gmpo(log_clip_low=said.log_clip_low, log_clip_high=said.log_clip_high)


def _vespo(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.vespo)
    return Vespo(
        k_positive=said.k_positive,
        rate_positive=said.lambda_positive,
        k_negative=said.k_negative,
        rate_negative=said.lambda_negative,
    )


def _dppo(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.dppo)
    return Dppo(
        mask_low=said.mask_low,
        mask_high=said.mask_high,
        drift_coefficient=said.drift_coefficient,
    )


def _custom(grpo: Grpo) -> Surrogate:
    said = _said(grpo.surrogate.custom)
    return load_algorithm(said.name, {item.name: item.value for item in said.parameters})


def _said(member: T | None) -> T:
    assert member is not None
    return member


BUILDERS: Mapping[str, Callable[[Grpo], Surrogate]] = {
    "clipped": _clipped,
    "cispo": _cispo,
    "sapo": _sapo,
    "gmpo": _gmpo,
    "vespo": _vespo,
    "dppo": _dppo,
    "custom": _custom,
}
