"""Scores computed in the head, a part of the positions at a time, against those of whole logits."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rollout.learner.forward import head
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    build_group_row,
    prepare_model,
    token_logprobs,
)
from rollout.learner.forward.reference import plain_group_logprobs
from rollout.learner.model import parallel
from rollout_api.checks.accelerators import activations

ROWS_OF_A_PART = 3


def groups_of(ids):
    return [
        GroupTokens(prompt_ids=ids(0, 5), completion_ids=(ids(1, 3), ids(2, 1), ids(3, 7))),
        GroupTokens(prompt_ids=ids(4, 9), completion_ids=(ids(5, 4),)),
    ]


@pytest.fixture
def in_parts(monkeypatch):
    """From here on rows are scored in parts, if their model's head may."""

    def switch(model):
        vocab_size = model.config.vocab_size
        monkeypatch.setattr(head, "PART_VALUES", ROWS_OF_A_PART * vocab_size)

    return switch


def scored(model, row, **asked):
    model.zero_grad()
    stats = token_logprobs(model, row, **asked)
    weights = torch.linspace(-1, 1, len(stats.logprobs_C))
    loss = (stats.logprobs_C * weights).sum()
    for more in (stats.entropy_C, stats.mean_logprobs_C):
        if more is not None:
            loss = loss + 0.1 * (more * weights.flip(0)).sum()
    loss.backward()
    gradients = [parallel.whole(p.grad).flatten() for p in model.parameters() if p.requires_grad]
    found = [stats.logprobs_C, stats.entropy_C, stats.mean_logprobs_C]
    return [x.detach() for x in found if x is not None], torch.cat(gradients)


def assert_parts_equal_the_whole(model, row, switch, **asked):
    values, gradients = scored(model, row, **asked)
    switch(model)
    assert head.scores_of(model).suits(len(row.predict_U))
    in_parts, its_gradients = scored(model, row, **asked)
    for one, other in zip(values, in_parts, strict=True):
        assert (one - other).abs().max() <= 1e-5
    assert (its_gradients - gradients).norm() <= 1e-5 * gradients.norm()


@pytest.fixture
def one_rank():
    alone = parallel.join(sharded=True)
    yield alone
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gemma"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7, "entropy": True},
        {"temperature": 1.3, "entropy": True, "spread": True},
    ],
)
def test_values_and_gradients_are_those_of_whole_logits(kind, asked, tiny_model, ids, in_parts):
    model = tiny_model(kind).train()
    prepare_model(model)

    assert_parts_equal_the_whole(model, build_group_row(groups_of(ids)), in_parts, **asked)


def test_tokens_that_could_not_be_sampled_stay_out(tiny_model, ids, in_parts):
    model = tiny_model("qwen2").train()
    prepare_model(model)
    row = build_group_row(groups_of(ids))
    row = row.barring((1, 3), [at % 2 == 0 for at in range(sum(row.lengths))])

    assert_parts_equal_the_whole(model, row, in_parts, entropy=True)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_shards_are_gathered_for_the_head(kind, tiny_model, ids, in_parts, one_rank):
    model = tiny_model(kind).train()
    prepare_model(model)
    row = build_group_row(groups_of(ids))
    whole = scored(model, row, entropy=True)
    assert one_rank.sharded
    parallel.shard(model, list(model.get_decoder().layers), None)
    in_parts(model)
    scored(model, row, entropy=True)
    assert head.scores_of(model).suits(len(row.predict_U))

    found = scored(model, row, entropy=True)

    assert (found[1] - whole[1]).norm() <= 1e-5 * whole[1].norm()


def test_an_adapter_trains_beside_a_frozen_head(tiny_model, ids, in_parts):
    model = get_peft_model(
        tiny_model("qwen2").train(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    prepare_model(model)

    assert_parts_equal_the_whole(model, build_group_row(groups_of(ids)), in_parts)


def test_an_adapter_around_the_head_is_computed_whole(tiny_model, ids, in_parts):
    model = tiny_model("qwen2").train()
    prepare_model(model)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"]))
    torch.nn.init.normal_(next(p for n, p in model.named_parameters() if "lora_B" in n))
    in_parts(model)
    groups = groups_of(ids)

    found = token_logprobs(model, build_group_row(groups)).logprobs_C

    assert head.scores_of(model) is None
    assert (found - plain_group_logprobs(model, groups).logprobs_C).abs().max() <= 1e-5


def test_a_model_that_caps_its_logits_has_them_whole(tiny_model, ids, in_parts):
    model = tiny_model("gemma2", final_logit_softcapping=2.0).train()
    prepare_model(model)
    groups = groups_of(ids)
    token_logprobs(model, build_group_row(groups))
    in_parts(model)

    found = token_logprobs(model, build_group_row(groups)).logprobs_C

    assert head.scores_of(model).passes is False
    assert (found - plain_group_logprobs(model, groups).logprobs_C).abs().max() <= 1e-5


def test_nothing_is_scored_in_parts_before_the_model_was_asked(tiny_model, ids, in_parts):
    model = tiny_model("qwen2").train()
    prepare_model(model)
    in_parts(model)
    row = build_group_row(groups_of(ids))
    assert not head.scores_of(model).suits(len(row.predict_U))

    token_logprobs(model, row)

    assert head.scores_of(model).suits(len(row.predict_U))


def test_a_plain_call_still_gives_logits(tiny_model, ids, in_parts):
    model = tiny_model("qwen2").train()
    prepare_model(model)
    row = build_group_row(groups_of(ids))
    token_logprobs(model, row)
    in_parts(model)
    token_logprobs(model, row)

    assert model(input_ids=row.input_ids).logits.shape == (
        1,
        row.num_tokens,
        model.config.vocab_size,
    )


def test_the_parts_hold_less_than_the_logits(tiny_model, ids, in_parts):
    """Of tensors of the size of a part and larger, none has a row for every position."""
    model = tiny_model("qwen2").train()
    prepare_model(model)
    row = build_group_row(groups_of(ids))
    token_logprobs(model, row)
    in_parts(model)
    saved = []

    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.append(x.shape) or x, lambda x: x
    ):
        token_logprobs(model, row, entropy=True)

    whole = (len(row.predict_U), model.config.vocab_size)
    assert whole not in {tuple(shape[-2:]) for shape in saved}


def test_plans_count_the_parts_that_the_learner_has():
    assert activations.LOGITS_OF_A_PART == head.PART_VALUES
