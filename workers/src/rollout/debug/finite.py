"""Which tensor went NaN: looks at weights, outputs of modules, logprobs, loss terms and gradients.

Names come in the order in which one breaks the next, so the first is where to look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn

from rollout.learner.model.policy import Policy
from rollout.learner.objectives.contract import Totals


def broken_weights(policy: Policy) -> list[str]:
    """Parameters that are not finite."""
    return [
        f"weight {name}"
        for name, tensor in policy.full_masters().items()
        if not bool(tensor.isfinite().all())
    ]


def broken_tokens(samples: Sequence[Mapping[str, Tensor]], column: str, what: str) -> list[str]:
    """Places of samples in whose ``column`` a number is not finite."""
    return [
        f"{what} of place {place}"
        for place, tokens in enumerate(samples)
        if column in tokens and not bool(tokens[column].isfinite().all())
    ]


def broken_losses(totals: Totals) -> list[str]:
    """Terms of the loss and of its metrics that are not finite."""
    sums, maxima = totals.local()
    values = {**sums, **maxima}
    return [f"loss term {name}" for name, value in values.items() if not math.isfinite(value)]


@contextmanager
def watched_outputs(model: nn.Module) -> Iterator[list[str]]:
    """A list that receives the name of the first module whose output is not finite."""
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if not found and not all(bool(t.isfinite().all()) for t in _tensors(output)):
            found.append(f"output of {name}")

    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
        return
    parts = output.values() if isinstance(output, Mapping) else output
    with suppress(TypeError):  # a cache, a None: nothing to look at
        for part in parts:
            if isinstance(part, Tensor):
                yield part
