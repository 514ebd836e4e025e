"""Models of published shapes with random weights: what a measurement on a GPU trains, without a download.

The tokenizer has an id a byte and names for all others, so that whatever a random model samples can be read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config, Qwen3Config

from rollout.models.builtin.local_tokenizers import PLAIN_STYLE, write_tokenizer

VOCAB = 151_936
CONTEXT = 131_072


def qwen2_half_billion(**smaller: int) -> PretrainedConfig:
    """Qwen2.5-0.5B: 494 million parameters, 136 of them in the tied embedding."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    }
    return Qwen2Config(**_common(sizes | smaller))


def qwen3_point_six_billion(**smaller: int) -> PretrainedConfig:
    """Qwen3-0.6B: 596 million parameters."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    return Qwen3Config(**_common(sizes | smaller))


def _common(sizes: dict[str, int]) -> dict:
    ends = {"eos_token_id": sizes["vocab_size"] - 1, "pad_token_id": sizes["vocab_size"] - 2}
    return {
        **sizes,
        **ends,
        "bos_token_id": None,
        "tie_word_embeddings": True,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 1e6,
    }


def write_model(folder: Path, config: PretrainedConfig, device: str) -> str:
    """The folder of a model whose weights are drawn on ``device``, in bfloat16; its path."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to("cpu").save_pretrained(folder)
    write_tokenizer(folder, build_tokenizer(config.vocab_size), PLAIN_STYLE, CONTEXT)
    return str(folder)


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Ids 0 to 255 are bytes, the last two ``<pad>`` and ``<eos>``, and those between have names in letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = alphabet + [f"w{i}." for i in range(len(alphabet), vocab_size - 2)]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in PLAIN_STYLE.specials])
    return tokenizer
