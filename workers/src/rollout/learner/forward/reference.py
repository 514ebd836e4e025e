"""The plain computation that packed rows must equal: every sequence whole, padded, prompts repeated.

Slow on purpose; tests, benchmarks and the check at a run's start compare against it.

Axes: B sequences, T padded length, V vocabulary, C scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from rollout.learner.forward.logprobs import TokenStats
from rollout.learner.forward.packed_rows import GroupTokens, SequenceTokens


def plain_group_logprobs(
    model: nn.Module,
    groups: Sequence[GroupTokens],
    *,
    temperature: float = 1.0,
    padding: int = 0,
) -> TokenStats:
    """What ``token_logprobs(model, build_group_row(groups))`` gives, prompts computed per sample."""
    sequences = [
        SequenceTokens(
            token_ids=group.prompt_ids + completion,
            scored=(0,) * len(group.prompt_ids) + (1,) * len(completion),
        )
        for group in groups
        for completion in group.completion_ids
    ]
    return plain_sequence_logprobs(model, sequences, temperature=temperature, padding=padding)


def plain_sequence_logprobs(
    model: nn.Module,
    sequences: Sequence[SequenceTokens],
    *,
    temperature: float = 1.0,
    padding: int = 0,
) -> TokenStats:
    """What ``token_logprobs(model, build_sequence_row(sequences))`` gives, right-padded.

    ``padding`` is how many tokens the longest has behind it.
    """
    length = max(len(sequence.token_ids) for sequence in sequences) + padding
    device = next(model.parameters()).device
    ids_BT = _padded([sequence.token_ids for sequence in sequences], length).to(device)
    scored_BT = _padded([sequence.scored for sequence in sequences], length).bool().to(device)
    mask_BT = _padded([(1,) * len(s.token_ids) for s in sequences], length).to(device)
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    logp_BTV = torch.log_softmax(logits_BTV[:, :-1].float() / temperature, dim=-1)
    picked_BT = logp_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    entropy_BT = -(logp_BTV.exp() * logp_BTV).sum(-1)
    keep_BT = scored_BT[:, 1:]
    return TokenStats(logprobs_C=picked_BT[keep_BT], entropy_C=entropy_BT[keep_BT])


def _padded(rows: Sequence[Sequence[int]], length: int) -> torch.Tensor:
    return torch.tensor([(*row, *([0] * (length - len(row)))) for row in rows])
