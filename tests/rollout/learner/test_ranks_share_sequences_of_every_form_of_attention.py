"""Two ranks that share a row's sequences have the logprobs and, summed, the gradients of one: windows, caps, sinks and experts, too."""

from __future__ import annotations

import pytest
import torch
import zoo_kit
from rank_kit import on_two_ranks
from zoo_plain import GROUPS

from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs
from rollout.learner.forward.sequence_parallel.slices import SequenceGroup, share_sequences

pytestmark = pytest.mark.process
KINDS = ("llama", "gemma2", "gpt_oss", "mixtral", "gpt_neox")
"""Keys of half as many heads; windows and caps; sinks; experts; heads of their own keys."""


def compute(kind: str, among: SequenceGroup | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = zoo_kit.build(kind)
    prepare_model(model)
    if among is not None:
        share_sequences(model, among)
    row = build_group_row(GROUPS)
    assert row.num_tokens % 2, "the slices are to be padded"
    logprobs_C = token_logprobs(model, row).logprobs_C
    loss = (logprobs_C * torch.linspace(-1, 2, len(logprobs_C))).sum()
    (loss if among is None or among.rank == 0 else loss * 0).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return logprobs_C.detach(), gradients


def test_every_form_is_that_of_one_rank():
    both = on_two_ranks(
        lambda parallel: {kind: compute(kind, parallel.sequences) for kind in KINDS},
        sharded=False,
        sequence=2,
    )

    for kind in KINDS:
        logprobs_C, gradients = compute(kind, None)
        for found, _ in (rank[kind] for rank in both):
            assert (found - logprobs_C).abs().max() < 1e-5, kind
        for name, wanted in gradients.items():
            parts = [rank[kind][1][name] for rank in both if name in rank[kind][1]]
            gap = (sum(parts) - wanted).abs().max()
            assert gap < 1e-5 * gradients_max(gradients), (kind, name, gap)


def gradients_max(gradients: dict[str, torch.Tensor]) -> float:
    return max(float(one.abs().max()) for one in gradients.values())


def test_heads_that_are_not_shared_out_are_refused():
    among = SequenceGroup(rank=0, ranks=3, group=None)
    with pytest.raises(SpecError, match="3 ranks share out heads"):
        share_sequences(zoo_kit.build("llama"), among)
