"""A tiny mixture of experts made on the spot: ``rollout://tiny-qwen3-moe``, as ``tiny`` makes dense models.

Every layer routes each token to ``top_k`` of ``experts``, each as wide as a dense model's ``intermediate``. Random
weights: it exercises everything and knows nothing. No torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors.numpy import save_file

from rollout.errors import SpecError
from rollout.models.builtin.local_tokenizers import (
    QWEN_STYLE,
    build_byte_tokenizer,
    write_tokenizer,
)
from rollout.models.builtin.tiny import (
    RECIPE_VERSION,
    TinyShape,
    draw_tensors,
    parameter_shapes,
    parse_shape,
    write_config,
)

NAME, FAMILY = "tiny-qwen3-moe", "qwen3_moe"
EXPERTS, TOP_K = 4, 2
EXPERTS_MAX = 1024
_MLP = re.compile(r"(?P<layer>model\.layers\.\d+\.mlp)\.(?P<part>gate|up|down)_proj\.weight")


def canonical_qwen3_moe(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters with defaults filled in: equal models have equal canonical parameters."""
    shape, experts, top_k = _parse(parameters)
    filled = asdict(shape) | {"experts": experts, "top_k": top_k, "recipe": RECIPE_VERSION}
    return {key: str(value) for key, value in filled.items()}


def build_qwen3_moe(directory: Path, parameters: Mapping[str, str]) -> None:
    """Write a Qwen3 mixture of experts as a model folder. Raises SpecError for a bad parameter."""
    shape, experts, top_k = _parse(parameters)
    tokenizer = build_byte_tokenizer(QWEN_STYLE)
    vocab_size = tokenizer.get_vocab_size()
    write_tokenizer(directory, tokenizer, QWEN_STYLE, shape.context)
    ids = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(QWEN_STYLE.eos),
        "pad_token_id": tokenizer.token_to_id(QWEN_STYLE.pad),
    }
    write_config(directory, shape, FAMILY, vocab_size=vocab_size, token_ids=ids)
    _add_experts(directory / "config.json", shape, experts, top_k)
    tensors = draw_tensors(_parameter_shapes(shape, experts, vocab_size), shape.seed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)


def _parse(parameters: Mapping[str, str]) -> tuple[TinyShape, int, int]:
    """The dense sizes, the experts of a layer and those of a token. Raises SpecError naming the parameter."""
    rest = {key: text for key, text in parameters.items() if key not in {"experts", "top_k"}}
    experts = _parse_count(parameters, "experts", EXPERTS, (2, EXPERTS_MAX))
    top_k = _parse_count(parameters, "top_k", min(TOP_K, experts), (1, experts))
    return parse_shape(NAME, rest), experts, top_k


def _parse_count(
    parameters: Mapping[str, str], key: str, default: int, bounds: tuple[int, int]
) -> int:
    text, (low, high) = parameters.get(key, str(default)), bounds
    if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
        raise SpecError(f"rollout://{NAME}: {key}={text!r}: expected an integer {low}..{high}")
    return int(text)


def _add_experts(path: Path, shape: TinyShape, experts: int, top_k: int) -> None:
    config = json.loads(path.read_text()) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": shape.intermediate,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }
    path.write_text(json.dumps(config, indent=2) + "\n")


def _parameter_shapes(
    shape: TinyShape, experts: int, vocab_size: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those of a dense model, its MLP once for each expert, a router beside them, and Qwen3's norms of heads."""
    for name, dims in parameter_shapes(shape, "llama", vocab_size):
        mlp = _MLP.fullmatch(name)
        if mlp is None:
            yield name, dims
            continue
        if mlp["part"] == "gate":
            yield f"{mlp['layer']}.gate.weight", (experts, shape.hidden)
            head = (shape.hidden // shape.heads,)
            for norm in ("q_norm", "k_norm"):
                yield f"{mlp['layer'].removesuffix('mlp')}self_attn.{norm}.weight", head
        for expert in range(experts):
            yield f"{mlp['layer']}.experts.{expert}.{mlp['part']}_proj.weight", dims
