"""Rows of models that cannot be packed: every sequence of a row computed whole, as transformers computes it.

For models whose layers carry a state (linear attention, state spaces), or whose attention has a form of its
own. Prompts are repeated for every sample. Sequences of a row are padded on the right, which nothing before
the pads can see; a model whose rotary frequencies depend on the longest sequence takes them one by one.

Axes: N tokens of the row, B sequences, T tokens of the longest, U positions that are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from rollout.learner.forward.layout import RowSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Sequences of a row side by side: ``take`` [B, T] row positions (pads repeat the last).

    ``home`` [N] is where a row position lies in [B * T], -1 where it is in another batch.
    """

    take: torch.Tensor
    home: torch.Tensor


def single_logits(
    model: nn.Module, ids_1N: torch.Tensor, segments: Sequence[RowSegment], read_U: torch.Tensor
) -> torch.Tensor:
    """Logits [U, V] at row positions ``read_U``, ascending within a sequence."""
    batches = list(_batches(model, segments, ids_1N.shape[1]))
    parts = []
    for batch in batches:
        home_U = batch.home.to(ids_1N.device)[read_U]
        here = home_U >= 0
        flat = home_U[here]
        length = batch.take.shape[1]
        first = int((flat % length).min()) if len(flat) else length - 1
        kept = {"logits_to_keep": length - first} if _takes(model, "logits_to_keep") else {}
        ids_BT = ids_1N[0][batch.take.to(ids_1N.device)]
        logits_BLV = model(input_ids=ids_BT, use_cache=False, **kept).logits
        skipped = length - logits_BLV.shape[1]
        wide = flat // length * (length - skipped) + flat % length - skipped
        parts.append((here, logits_BLV.flatten(0, 1).index_select(0, wide)))
    return _merged(parts)


def single_states(
    decoder: nn.Module, ids_1N: torch.Tensor, segments: Sequence[RowSegment], read_S: torch.Tensor
) -> torch.Tensor:
    """Hidden states [S, E] at row positions ``read_S`` of a transformer without its head."""
    parts = []
    for batch in _batches(decoder, segments, ids_1N.shape[1]):
        home_S = batch.home.to(ids_1N.device)[read_S]
        here = home_S >= 0
        ids_BT = ids_1N[0][batch.take.to(ids_1N.device)]
        states_BTE = decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
        parts.append((here, states_BTE.flatten(0, 1).index_select(0, home_S[here])))
    return _merged(parts)


def _merged(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0][1]
    where = torch.cat([here.nonzero()[:, 0] for here, _ in parts])
    return torch.cat([values for _, values in parts]).index_select(0, where.argsort())


def _batches(model: nn.Module, segments: Sequence[RowSegment], num_tokens: int) -> Iterator[Padded]:
    sequences = list(whole_sequences(segments))
    free = torch.ones(num_tokens, dtype=torch.bool)  # a prompt is read in its first sequence
    for some in [[one] for one in sequences] if _follows_length(model) else [sequences]:
        batch = _pad(some, free)
        free &= batch.home < 0
        yield batch


def _pad(sequences: Sequence[Sequence[int]], free: torch.Tensor) -> Padded:
    length = max(map(len, sequences))
    take = torch.tensor([[*one, *[one[-1]] * (length - len(one))] for one in sequences])
    home = torch.full((len(free),), -1, dtype=torch.int64)
    for b, one in reversed(list(enumerate(sequences))):
        home[torch.tensor(one)] = b * length + torch.arange(len(one))
    return Padded(take=take, home=home.masked_fill(~free, -1))


def whole_sequences(segments: Sequence[RowSegment]) -> Iterator[list[int]]:
    """Row positions of every sequence: a completion behind its prompt, or a segment nobody continues."""
    continued = {segment.prompt for segment in segments}
    for index, segment in enumerate(segments):
        own = list(range(segment.start, segment.end))
        if segment.prompt is not None:
            prompt = segments[segment.prompt]
            yield [*range(prompt.start, prompt.end), *own]
        elif index not in continued:
            yield own


def _follows_length(model: nn.Module) -> bool:
    config = model.config  # pyrefly: ignore - transformers' models have one
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type") in {"longrope", "dynamic"}


def _takes(model: nn.Module, name: str) -> bool:
    base = cast("Any", model).get_base_model() if hasattr(model, "get_base_model") else model
    return name in inspect.signature(base.forward).parameters  # pyrefly: ignore - PEFT's or the module itself
