"""A model folder as transformers' sequence classification with one label: what a reward model is on disk.

Configuration only: nothing here loads weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CAUSAL, SCORING = "ForCausalLM", "ForSequenceClassification"
HEAD = "score.weight"
"""The head's name among a folder's tensors, [1, hidden]."""


def is_scorer(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of a reward model."""
    return any(str(name).endswith(SCORING) for name in config.get("architectures") or ())


def score_config(config: Mapping[str, Any], pad_token_id: int) -> dict[str, Any]:
    """The config.json of a reward model on the same transformer as ``config``'s causal model.

    transformers reads the score at the last token that is not ``pad_token_id``.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    return {
        **config,
        "architectures": [
            name.removesuffix(CAUSAL).removesuffix(SCORING) + SCORING for name in names
        ],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "num_labels": 1,
        "pad_token_id": pad_token_id,
    }


def write_score_config(folder: Path, pad_token_id: int) -> None:
    """Make the folder's config.json that of a reward model, in place."""
    path = folder / "config.json"
    config = score_config(json.loads(path.read_text()), pad_token_id)
    path.write_text(json.dumps(config, indent=2) + "\n")
