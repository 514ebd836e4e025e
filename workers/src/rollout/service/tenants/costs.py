"""What calls cost in tokens: the most that a call may come to, and what it came to. Pure, of what the book holds alone.

A forward or backward pass costs the tokens of its sequences, a sampling call its prompt, once, and its completions, scored or
not. What is refused costs nothing, and so do steps, saves and loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rollout.service.calls import (
    ForwardBackward,
    ModelAnswer,
    ModelCall,
    RefusedAnswer,
    SampleAnswer,
    SampleCall,
    SaveForSampler,
    SaveState,
)

TOKEN_BYTES = NUMBER_BYTES = 4
STATE_PARTS = 4
"""A state holds of each number that is trained itself, two moments and a gathered gradient."""


def tokens_at_most(call: ModelCall | SampleCall) -> int:
    """What a call is charged when it is taken in."""
    if isinstance(call, ForwardBackward):
        return sum(len(datum.tokens) for datum in call.data) // TOKEN_BYTES
    if isinstance(call, SampleCall):
        return len(call.prompt) + len(call.seeds) * call.max_tokens
    return 0


def tokens_used(call: ModelCall | SampleCall, answer: ModelAnswer | SampleAnswer) -> int:
    """What a call has cost when it is answered; never more than at most."""
    if isinstance(answer, RefusedAnswer):
        return 0
    if isinstance(call, SampleCall) and isinstance(answer, SampleAnswer):
        drawn = sum(len(one.tokens) for one in answer.sequences)
        return len(call.prompt) + drawn // TOKEN_BYTES
    return tokens_at_most(call)


def bytes_to_save(call: ModelCall, shapes: Mapping[str, tuple[int, ...]], rank: int | None) -> int:
    """The most that a call saves: the dense weights of a base of these shapes, or the state of an adapter of ``rank``.

    ``rank`` None: all weights are trained.
    """
    dense = sum(map(prod, shapes.values()))
    if isinstance(call, SaveForSampler):
        return NUMBER_BYTES * dense
    if not isinstance(call, SaveState):
        return 0
    trained = dense if rank is None else rank * sum(map(_sides, shapes.items()))
    return NUMBER_BYTES * STATE_PARTS * trained


def _sides(weight: tuple[str, tuple[int, ...]]) -> int:
    """Of a matrix that an adapter may be on."""
    name, shape = weight
    return sum(shape) if len(shape) == 2 and "embed" not in name and "lm_head" not in name else 0
