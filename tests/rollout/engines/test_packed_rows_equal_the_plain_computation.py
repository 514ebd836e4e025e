"""Rows with shared prompts, and rows of many sequences, against every sequence computed whole and padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertLMHeadModel

from rollout.learner.forward.packed_rows import (
    GroupTokens,
    SequenceTokens,
    build_group_row,
    build_sequence_row,
    prepare_model,
    token_logprobs,
)
from rollout.learner.forward.reference import plain_group_logprobs, plain_sequence_logprobs

BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}

LENGTHS = st.integers(1, 7) | st.sampled_from([49, 64, 90])


def prepared(tiny_model, kind="qwen2", **options):
    model = tiny_model(kind, **options).train()
    prepare_model(model)
    return model


def gradients(model, stats, weights):
    model.zero_grad()
    loss = (stats.logprobs_C * weights).sum() + 0.1 * (stats.entropy_C * weights.flip(0)).sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_equal(model, packed, plain):
    assert (packed.logprobs_C - plain.logprobs_C).abs().max() <= 5e-6
    assert (packed.entropy_C - plain.entropy_C).abs().max() <= 5e-6
    weights = torch.linspace(-1, 1, packed.logprobs_C.numel())
    mine, theirs = gradients(model, packed, weights), gradients(model, plain, weights)
    assert (mine - theirs).norm() <= 2e-6 * theirs.norm()


def groups_of(ids, shapes):
    return [
        GroupTokens(
            prompt_ids=ids(i, prompt),
            completion_ids=tuple(ids(100 * i + j, n) for j, n in enumerate(completions)),
        )
        for i, (prompt, completions) in enumerate(shapes)
    ]


SHAPES = [
    [(5, (3, 1, 7)), (1, (1, 1)), (9, (4,))],
    [(70, (80, 80, 80)), (60, (2, 90))],
    [(130, (64, 65)), (3, (5, 5))],
]


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gemma"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_groups_sharing_their_prompt_give_the_same_values_and_gradients(
    kind, shapes, tiny_model, ids
):
    model, groups = prepared(tiny_model, kind), groups_of(ids, shapes)

    packed = token_logprobs(model, build_group_row(groups), temperature=0.7, entropy=True)

    assert_equal(model, packed, plain_group_logprobs(model, groups, temperature=0.7))


@given(
    shapes=st.lists(
        st.tuples(LENGTHS, st.lists(LENGTHS, min_size=1, max_size=4)), min_size=1, max_size=4
    )
)
@settings(max_examples=15)
def test_any_groups_give_the_same_logprobs(model_once, ids_once, shapes):
    groups = groups_of(ids_once, shapes)

    with torch.no_grad():
        packed = token_logprobs(model_once, build_group_row(groups), entropy=True)
        plain = plain_group_logprobs(model_once, groups)

    assert (packed.logprobs_C - plain.logprobs_C).abs().max() <= 5e-6


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_any_sequences_give_the_same_logprobs(model_once, ids_once, lengths, seed):
    noise = torch.Generator().manual_seed(seed)
    sequences = []
    for i, length in enumerate(lengths):
        scored = torch.randint(2, (length + 1,), generator=noise).tolist()
        sequences.append(
            SequenceTokens(token_ids=ids_once(i, length + 1), scored=(0, *scored[1:-1], 1))
        )

    with torch.no_grad():
        packed = token_logprobs(model_once, build_sequence_row(sequences))
        plain = plain_sequence_logprobs(model_once, sequences)

    assert (packed.logprobs_C - plain.logprobs_C).abs().max() <= 5e-6


def test_packed_sequences_give_the_same_gradients_as_padded_ones(tiny_model, ids):
    model = prepared(tiny_model)
    sequences = [
        SequenceTokens(token_ids=ids(i, n), scored=(0,) * (n // 2) + (1,) * (n - n // 2))
        for i, n in enumerate((12, 5, 70, 70, 33, 2))
    ]

    packed = token_logprobs(model, build_sequence_row(sequences), entropy=True)

    assert_equal(model, packed, plain_sequence_logprobs(model, sequences))


def test_a_sequence_with_nothing_scored_takes_no_place(tiny_model, ids):
    some = SequenceTokens(token_ids=ids(0, 6), scored=(0, 0, 0, 1, 1, 0))
    none = SequenceTokens(token_ids=ids(1, 6), scored=(0,) * 6)

    row = build_sequence_row([none, some, none])

    assert row.num_tokens == 4
    assert row.lengths == (0, 2, 0)


def test_lengths_split_the_scores_by_sample(tiny_model, ids):
    model = prepared(tiny_model)
    groups = groups_of(ids, [(5, (3, 1, 7)), (2, (4,))])
    with torch.no_grad():
        parts = token_logprobs(model, row := build_group_row(groups)).logprobs_C.split(row.lengths)
        last = token_logprobs(model, build_group_row(groups[1:])).logprobs_C

    assert [len(part) for part in parts] == [3, 1, 7, 4]
    assert torch.allclose(parts[3], last, atol=5e-6)


@pytest.mark.parametrize("window", [1, 3, 8, 64])
@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_windows_are_kept_in_packed_rows(kind, window, tiny_model, ids):
    options = {"sliding_window": window}
    if kind == "qwen2":
        options |= {"use_sliding_window": True, "max_window_layers": 1}
    model = prepared(tiny_model, kind, **options)

    for shapes in (SHAPES[0], SHAPES[1], [(300, (290, 1, 20))]):
        groups = groups_of(ids, shapes)
        packed = token_logprobs(model, build_group_row(groups), entropy=True)
        assert_equal(model, packed, plain_group_logprobs(model, groups))


def test_a_window_longer_than_every_sequence_costs_nothing(tiny_model, ids, monkeypatch):
    from rollout.learner.forward import attention

    model, groups = prepared(tiny_model, "mistral", sliding_window=20), groups_of(ids, SHAPES[0])
    monkeypatch.setattr(attention, "block_attention", None)

    token_logprobs(model, build_group_row(groups))


def test_temperature_divides_the_logits(tiny_model, ids):
    model, groups = prepared(tiny_model), groups_of(ids, [(5, (3, 4))])
    with torch.no_grad():
        hot = token_logprobs(model, build_group_row(groups), temperature=2.0, entropy=True)
        cold = token_logprobs(model, build_group_row(groups), temperature=0.5, entropy=True)

    assert hot.entropy_C.mean() > cold.entropy_C.mean()


def test_recomputing_activations_changes_nothing(tiny_model, ids):
    model, groups = prepared(tiny_model), groups_of(ids, SHAPES[1])
    row = build_group_row(groups)
    weights = torch.ones(sum(row.lengths))
    kept = gradients(model, token_logprobs(model, row, entropy=True), weights)

    model.gradient_checkpointing_enable({"use_reentrant": False})

    again = gradients(model, token_logprobs(model, row, entropy=True), weights)
    assert torch.equal(kept, again)


def test_the_same_row_gives_the_same_bits(tiny_model, ids):
    model = prepared(tiny_model)
    row = build_group_row(groups_of(ids, SHAPES[0]))
    weights = torch.ones(sum(row.lengths))

    first = gradients(model, token_logprobs(model, row, entropy=True), weights)
    second = gradients(model, token_logprobs(model, row, entropy=True), weights)

    assert torch.equal(first, second)


def test_adapters_train_through_packed_rows(tiny_model, ids):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        tiny_model("qwen2"),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    )
    prepare_model(adapted)
    groups = groups_of(ids, SHAPES[0])

    packed = token_logprobs(adapted, build_group_row(groups), entropy=True)
    plain = plain_group_logprobs(adapted, groups)

    assert (packed.logprobs_C - plain.logprobs_C).abs().max() <= 5e-6
    packed.logprobs_C.sum().backward()
    trained = [p.grad is not None for p in adapted.parameters() if p.requires_grad]
    assert trained and all(trained)


def test_sharded_parameters_change_nothing(tiny_model, ids, tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    row = build_group_row(groups_of(ids, SHAPES[0]))
    weights = torch.ones(sum(row.lengths))
    model = prepared(tiny_model)
    whole = gradients(model, token_logprobs(model, row, entropy=True), weights)

    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        stats = token_logprobs(model, row, entropy=True)
        ((stats.logprobs_C + 0.1 * stats.entropy_C) * weights).sum().backward()
        sharded = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    finally:
        distributed.destroy_process_group()

    assert (sharded - whole).norm() <= 2e-6 * whole.norm()


def test_models_that_rows_cannot_compute_are_refused(tiny_model):
    with pytest.raises(ValueError, match=r"look at later ones.*take a decoder"):
        prepare_model(BertLMHeadModel(BertConfig(**BERT)))
    with pytest.raises(ValueError, match="dropout"):
        prepare_model(tiny_model("qwen2", attention_dropout=0.1))


def test_malformed_input_is_refused(ids):
    with pytest.raises(ValueError, match="at least one token"):
        build_group_row([GroupTokens(prompt_ids=(), completion_ids=((1,),))])
    with pytest.raises(ValueError, match="at least one token"):
        build_group_row([GroupTokens(prompt_ids=(1,), completion_ids=((1,), ()))])
    good = SequenceTokens(token_ids=(1, 2), scored=(0, 1))
    with pytest.raises(ValueError, match="position 0"):
        build_sequence_row([replace(good, scored=(1, 1))])
    with pytest.raises(ValueError, match="position 0"):
        build_sequence_row([replace(good, scored=(0, 1, 1))])


@pytest.fixture(scope="module")
def model_once(build_once):
    model = build_once("qwen2")
    prepare_model(model)
    return model
