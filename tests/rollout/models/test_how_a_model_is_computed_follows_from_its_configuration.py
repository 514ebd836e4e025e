"""A model's configuration alone says whether its rows are packed, computed one by one, or refused."""

from __future__ import annotations

import json

import pytest

from rollout.errors import SpecError
from rollout.models.forwards import LENGTHS_MAX, chooses_experts, forward_of, frequencies_hold
from rollout.models.shapes import read_shape

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "qwen3"}, "Packed"),
        ({"model_type": "mistral", "sliding_window": 4096}, "Packed"),
        (
            {"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"]},
            "Packed",
        ),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"]}, "Single"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"]}, "Single"),
        ({"model_type": "qwen3_5_text"}, "Single"),
        ({"model_type": "of-tomorrow"}, "Single"),
        ({}, "Single"),
        ({"model_type": "bert"}, "Refused"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "Refused"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": False}, "Packed"),
    ],
)
def test_the_kind_follows_from_type_and_layers(config, kind):
    assert forward_of(config).kind == kind
    assert bool(forward_of(config).reason) == (kind != "Packed")


@pytest.mark.parametrize(
    ("config", "routes"),
    [
        ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}, True),
        ({"model_type": "mixtral", "num_local_experts": 8}, True),
        ({"model_type": "deepseek_v3", "n_routed_experts": 4, "n_shared_experts": 1}, True),
        ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, True),
        ({"model_type": "jamba", "num_experts": 1}, False),
        ({"model_type": "deepseek_v3", "n_routed_experts": None, "n_shared_experts": 2}, False),
        ({"model_type": "qwen3"}, False),
    ],
)
def test_a_model_that_routes_its_tokens_is_known_by_its_experts(config, routes):
    assert chooses_experts(config) is routes


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({}, LENGTHS_MAX),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, LENGTHS_MAX),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 32}, 32),
        (
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 48}},
            48,
        ),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 64}, 64),
    ],
)
def test_frequencies_that_follow_the_length_bound_a_packed_sequence(config, tokens):
    assert frequencies_hold(config) == tokens


def test_a_plan_counts_on_the_context_within_which_frequencies_stay(tmp_path):
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 48}
    config = {**SIZES, "model_type": "phi3", "rope_parameters": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_shape(tmp_path).context == 48


def test_a_plan_refuses_an_encoder_and_says_what_to_take(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "roberta"}))

    with pytest.raises(
        SpecError, match=r"roberta cannot be trained: .*take a decoder such as qwen3"
    ):
        read_shape(tmp_path)
