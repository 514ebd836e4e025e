"""What a model folder answers with, by its own files: text, a vector, or the numbers of a head; and how those are read.

A vector's pooling and normalising are those of sentence-transformers' files where there are some; a causal model's is its
last hidden state, normalised, as vLLM reads it. What is not known here is refused by name: another pooling would be another
vector. Never loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollout.errors import SpecError
from rollout.models.forwards import ENCODERS, frequencies_hold
from rollout.models.scoring import CAUSAL, find_head, is_scorer, no_head, read_config

Task = Literal["generate", "embed", "score"]
Pooling = Literal["last", "mean", "cls"]
Activation = Literal["none", "sigmoid", "softmax"]

TASKS: tuple[Task, ...] = ("generate", "embed", "score")
RUN_TASKS: Mapping[str, Task] = {"Generate": "generate", "Embed": "embed", "Score": "score"}
"""By the API's name of what an inference run does."""
MODULES = "modules.json"
_MODES: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_ACTIVATIONS: Mapping[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid"}
_PROBLEMS: Mapping[str, Activation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledModel:
    """How a model's vector or numbers are read.

    ``dimensions``: lengths that a vector may be cut to; empty: any, None: it may not be cut. ``labels`` are the head's.
    ``activation``: what its numbers go through where nobody says else. ``context``: longest sequence in tokens.
    ``looks_ahead``: it is an encoder.
    """

    task: Literal["embed", "score"]
    pooling: Pooling = "last"
    normalised: bool = True
    dimensions: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    activation: Activation = "none"
    context: int
    looks_ahead: bool = False


def choose_task(folder: Path, wanted: Task | None = None) -> Task:
    """What a model is served for: ``wanted``, or what its files say it is for. Raises SpecError for what it cannot do."""
    config = read_model_config(folder)
    scores, embeds = is_scorer(config), _is_embedder(folder, config)
    own: Task = "score" if scores else "embed" if embeds else "generate"
    task = wanted or own
    if task == "score" and not scores:
        raise SpecError(no_head(folder))
    if scores and task != "score":
        raise SpecError(f"{folder}: this is a reward model: it can score and nothing else")
    if task == "generate" and embeds:
        raise SpecError(f"{folder}: this model gives vectors and no text: serve it to embed")
    if task != "generate":
        read_pooled(folder, task)
    return task


def read_pooled(folder: Path, task: Literal["embed", "score"]) -> PooledModel:
    """How the folder's vector or numbers are read. Raises SpecError."""
    config = read_model_config(folder)
    ahead = _looks_ahead(config)
    context = _context(folder, config)
    if task == "score":
        return _read_head(folder, config, context, looks_ahead=ahead)
    pooling, normalised = _read_modules(folder) or ("cls" if ahead else "last", True)
    return PooledModel(
        task="embed",
        pooling=pooling,
        normalised=normalised,
        dimensions=_dimensions(folder, config),
        context=context,
        looks_ahead=ahead,
    )


def read_model_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises SpecError."""
    try:
        config = read_config(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{folder}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise SpecError(f"{folder}/config.json: expected an object")
    return config


def _looks_ahead(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type")) in ENCODERS


def _is_embedder(folder: Path, config: Mapping[str, Any]) -> bool:
    names = [str(one) for one in config.get("architectures") or ()]
    bare = any(one.endswith("Model") and not one.endswith("LMHeadModel") for one in names)
    causal = any(one.endswith(CAUSAL) for one in names)
    return (folder / MODULES).is_file() or _looks_ahead(config) or (bare and not causal)


def _read_head(
    folder: Path, config: Mapping[str, Any], context: int, *, looks_ahead: bool
) -> PooledModel:
    if not is_scorer(config) or (not looks_ahead and find_head(folder) is None):
        raise SpecError(no_head(folder))
    labels = config.get("id2label") or {}
    num = config.get("num_labels") or len(labels) or 2
    if not isinstance(labels, Mapping) or type(num) is not int or not 1 <= num <= 1 << 16:
        raise SpecError(f"{folder}/config.json: num_labels: expected 1 or more, got {num!r:.40}")
    return PooledModel(
        task="score",
        labels=tuple(str(labels.get(str(i), f"LABEL_{i}")) for i in range(num)),
        activation=_activation(folder, config, num),
        context=context,
        looks_ahead=looks_ahead,
    )


def _activation(folder: Path, config: Mapping[str, Any], num_labels: int) -> Activation:
    """What the model's files name; else nothing for one label, which is a reward, and shares of one for several."""
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if named is not None:
        found = _ACTIVATIONS.get(str(named).rsplit(".", 1)[-1])
        if found is None:
            raise SpecError(f"{folder}/config.json: the head's activation {named!r:.80} is unknown")
        return found
    default: Activation = "none" if num_labels == 1 else "softmax"
    return _PROBLEMS.get(str(config.get("problem_type")), default)


def _read_modules(folder: Path) -> tuple[Pooling, bool] | None:
    """Pooling and whether it is normalised, by sentence-transformers' files; None where there are none."""
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = _read_json(path)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise SpecError(f"{path}: expected a list of modules")
    kinds = [str(one.get("type")).rsplit(".", 1)[-1] for one in modules]
    others = [one for one in kinds if one not in {"Transformer", "Pooling", "Normalize"}]
    if others or kinds[:2] != ["Transformer", "Pooling"]:
        shown = ", ".join(others or kinds)
        raise SpecError(
            f"{path}: expected a Transformer, a Pooling and maybe a Normalize, got {shown:.120}: vectors of"
            " such a model are not computed here"
        )
    return _read_pooling(folder, str(modules[1].get("path"))), "Normalize" in kinds


def _read_pooling(folder: Path, name: str) -> Pooling:
    path = folder / name / "config.json"
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SpecError(f"{folder / MODULES}: {name!r:.80} is no folder of this model")
    config = _read_json(path)
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected an object")
    given = config.get("pooling_mode")
    modes = [given] if isinstance(given, str) else given if isinstance(given, list) else None
    if modes is None:
        modes = [one for one, on in config.items() if one.startswith("pooling_mode_") and on]
    found = [_MODES.get(str(one)) or _NAMED.get(str(one)) for one in modes]
    if len(found) != 1 or found[0] is None:
        raise SpecError(
            f"{path}: expected one of {', '.join(_NAMED)} as pooling, got {', '.join(map(str, modes)):.120}"
        )
    return found[0]


def _dimensions(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...] | None:
    named = config.get("matryoshka_dimensions")
    if named:
        if not isinstance(named, Sequence) or not all(type(one) is int for one in named):
            raise SpecError(f"{folder}/config.json: matryoshka_dimensions: expected whole numbers")
        return tuple(named)
    return () if config.get("is_matryoshka") is True else None


def _context(folder: Path, config: Mapping[str, Any]) -> int:
    longest = config.get("max_position_embeddings")
    if type(longest) is not int or longest < 1:
        raise SpecError(
            f"{folder}/config.json: max_position_embeddings: expected 1 or more, got {longest!r:.40}"
        )
    if "roberta" in str(config.get("model_type")) or config.get("model_type") == "camembert":
        longest -= int(config.get("pad_token_id") or 0) + 1  # positions are counted from there
    own = _read_json(folder / "sentence_bert_config.json")
    limit = own.get("max_seq_length") if isinstance(own, dict) else None
    longest = min(longest, limit) if type(limit) is int and limit > 0 else longest
    return min(longest, frequencies_hold(config))


def _read_json(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
