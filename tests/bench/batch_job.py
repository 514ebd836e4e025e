"""One batch for two sides: a model of random weights, rows of unequal lengths, and the manifest that asks for them.

Each letter of a prompt is a token. How many new tokens a row may have is its own line's word, so that both sides
draw as many.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import shaped_model
from transformers import PretrainedConfig

ROWS = int(os.environ.get("BENCH_ROWS", "512"))
SEQUENCES = int(os.environ.get("BENCH_SEQUENCES", "64"))
WARM_ROWS = max(1, ROWS // 16)
"""Rows of the turn that nothing is measured of."""
PROMPT_LETTERS = (8, 120)
NEW_TOKENS = (4, 96)
TEMPERATURE = 1.0
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def model_config() -> PretrainedConfig:
    """110 million parameters, 6 of them in the tied embedding."""
    return shaped_model.qwen2_half_billion(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
    )


def write_job(folder: Path) -> str:
    """The folder with model, rows and two manifests, ``whole.json`` and ``warm.json``; its path."""
    model = shaped_model.write_model(folder / "model", model_config(), "cpu")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in build_lines(ROWS)))
    for name, number in (("whole", ROWS), ("warm", WARM_ROWS)):
        (folder / f"{name}.json").write_text(json.dumps(_manifest(model, rows, number)))
    return str(folder)


def build_lines(number: int) -> list[dict[str, Any]]:
    """OpenAI batch lines: few of many new tokens, many of few."""
    draw = random.Random(7)
    return [_line(index, draw) for index in range(number)]


def _line(index: int, draw: random.Random) -> dict[str, Any]:
    low, high = NEW_TOKENS
    letters = draw.choices(LETTERS, k=draw.randint(*PROMPT_LETTERS))
    return {
        "custom_id": f"row-{index}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "user", "content": "".join(letters)}],
            "max_tokens": min(high, low + int(draw.expovariate(1 / 20))),
        },
    }


def _manifest(model: str, rows: Path, number: int) -> dict[str, Any]:
    """JSON is YAML."""
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "bench-batch"},
        "spec": {
            "model": {"uri": f"file://{model}", "dtype": "BFloat16"},
            "numerics": {"mode": "Fast"},
            "actors": {"engine": {"vllm": {"maxNumSeqs": SEQUENCES}}},
            "infer": {
                "data": {"jsonl": {"uri": str(rows)}},
                "maxPrompts": number,
                "sampling": {"maxNewTokens": NEW_TOKENS[1], "temperature": str(TEMPERATURE)},
            },
        },
    }
