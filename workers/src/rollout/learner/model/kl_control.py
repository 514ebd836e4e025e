"""The KL coefficient of a run: state of the learner, saved and hashed with the rest of it."""

from __future__ import annotations

import torch

from rollout.algorithms.kl_controller import KlTarget, next_kl_coefficient


class KlControl:
    """Owns the coefficient; moved once after every step. ``target`` None keeps it as it is."""

    def __init__(self, coefficient: float, target: KlTarget | None) -> None:
        self.coefficient = coefficient
        self._target = target

    def observe(self, *, kl: float, num_samples: int) -> None:
        """Take in a step's KL per answer (nats), measured before its first update."""
        self.coefficient = next_kl_coefficient(
            self.coefficient, self._target, kl=kl, num_samples=num_samples
        )

    def state(self) -> torch.Tensor:
        """The coefficient as a tensor, for the state's digest."""
        return torch.tensor([self.coefficient], dtype=torch.float64)
