"""Log-probabilities of a prompt's tokens under weights that were saved: the learner's forward over one module.

Axes: N tokens of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from rollout.learner.forward.packed_rows import (
    SequenceTokens,
    build_sequence_row,
    token_logprobs,
)
from rollout.service.training.bases import TrainingBase


@dataclass(slots=True, kw_only=True)
class PromptScorer:
    """Owns one module, of the base and the weights that were scored with last. One call at a time."""

    _base: str = field(default="", init=False)
    _digest: str = field(default="", init=False)
    _module: nn.Module | None = field(default=None, init=False)

    def holds(self, base: TrainingBase, digest: str) -> bool:
        """Whether these weights are there already."""
        return (self._base, self._digest) == (base.name, digest)

    def load(self, base: TrainingBase, digest: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over weights by the names of the base's own."""
        module = (
            self._module if self._module is not None and self._base == base.name else base.build()
        )
        self._base, self._digest = base.name, ""
        for name, parameter in module.named_parameters():
            parameter.data = weights[name]
        self._module, self._digest = module, digest

    def score(self, prompt: tuple[int, ...]) -> torch.Tensor:
        """float32 [N] at temperature 1; NaN for the first token, which nothing comes before."""
        assert self._module is not None, "load comes first"
        nothing = torch.full((1,), torch.nan)
        if len(prompt) == 1:
            return nothing
        scored = (0, *([1] * (len(prompt) - 1)))
        row = build_sequence_row([SequenceTokens(token_ids=prompt, scored=scored)])
        with torch.no_grad():
            found = token_logprobs(self._module, row).logprobs_C
        return torch.cat((nothing, found.float()))
