"""Rows that nothing is predicted from go through the last layer's attention, not through its MLP."""

from __future__ import annotations

import pytest
import torch

from rollout.learner.forward.packed_rows import (
    SequenceTokens,
    build_sequence_row,
    prepare_model,
    row_states,
    token_logprobs,
)
from rollout.learner.forward.reference import plain_sequence_logprobs


def half_scored(ids, lengths):
    return [
        SequenceTokens(token_ids=ids(i, n), scored=(0,) * (n - n // 2) + (1,) * (n // 2))
        for i, n in enumerate(lengths)
    ]


def count_rows(model):
    seen = {}
    for number, layer in enumerate(model.model.layers):
        layer.mlp.gate_proj.register_forward_pre_hook(
            lambda _, args, number=number: seen.update({number: args[0].shape[1]})
        )
    return seen


def test_only_the_last_layer_computes_fewer_rows(tiny_model, ids):
    model = tiny_model("qwen2")
    prepare_model(model)
    seen = count_rows(model)
    row = build_sequence_row(half_scored(ids, (12, 40)))

    token_logprobs(model, row)

    *others, last = [seen[number] for number in sorted(seen)]
    assert set(others) == {row.num_tokens}
    assert last == len(row.predict_U) < row.num_tokens


def test_nothing_is_picked_out_where_almost_all_is_read(tiny_model, ids):
    model = tiny_model("qwen2")
    prepare_model(model)
    seen = count_rows(model)
    sequence = SequenceTokens(token_ids=ids(0, 30), scored=(0,) + (1,) * 29)

    row = build_sequence_row([sequence])
    token_logprobs(model, row)

    assert set(seen.values()) == {row.num_tokens}


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gemma"])
def test_gradients_are_those_of_the_plain_computation_when_activations_are_recomputed(
    kind, tiny_model, ids
):
    model = tiny_model(kind).train()
    prepare_model(model)
    sequences = half_scored(ids, (12, 5, 70))
    plain_sequence_logprobs(model, sequences).logprobs_C.sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": False})

    token_logprobs(model, build_sequence_row(sequences)).logprobs_C.sum().backward()

    for parameter, expected in zip(model.parameters(), plain, strict=True):
        assert (parameter.grad - expected).norm() <= 5e-6 * max(expected.norm(), 1e-3)


def test_a_position_that_is_read_twice_counts_twice(tiny_model, ids):
    model = tiny_model("qwen2")
    prepare_model(model)
    row = build_sequence_row(half_scored(ids, (12, 40)))
    once = torch.tensor([3, 20])

    def gradient(positions):
        model.zero_grad()
        row_states(model.model, row, positions).sum().backward()
        return model.model.embed_tokens.weight.grad.clone()

    assert torch.allclose(gradient(torch.cat([once, once])), 2 * gradient(once), atol=1e-6)
