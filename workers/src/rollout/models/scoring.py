"""A model folder as transformers' sequence classification with one label: what a reward model is on disk.

Configuration and names of tensors only: nothing here loads weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from rollout.errors import SpecError

CAUSAL, SCORING = "ForCausalLM", "ForSequenceClassification"
HEAD = "score.weight"
"""The head's name among a folder's tensors, [1, hidden]."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    return json.loads((folder / "config.json").read_text())


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


def find_head(folder: Path) -> Path | None:
    """The weights file of a folder that has the head; None when none has."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            if HEAD in tensors.keys():  # noqa: SIM118 - not a mapping
                return file
    return None


def require_head(folder: Path) -> None:
    """Raise SpecError unless the folder is a reward model with its head."""
    if not is_scorer(read_config(folder)) or find_head(folder) is None:
        raise SpecError(no_head(folder))


def no_head(folder: Path) -> str:
    """What is said of a folder without a head."""
    return (
        f"{folder}: this is no reward model: its weights have no {HEAD}; name a run with algorithm:"
        " {rm: {}}, or a model saved as sequence classification with one label"
    )


def write_score_config(folder: Path, pad_token_id: int) -> None:
    """Make the folder's config.json that of a reward model, in place."""
    path = folder / "config.json"
    config = score_config(json.loads(path.read_text()), pad_token_id)
    path.write_text(json.dumps(config, indent=2) + "\n")
