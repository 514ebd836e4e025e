"""Whether an actor samples from the policy that the learner holds.

Compares log-probabilities of the same tokens; decides nothing: the monitor and the tests do.

Axes: G completion rows, T positions of prompt and completion, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rollout.errors import StoreError

FLOAT32_GAP_MAX = 5e-6
"""Largest honest difference in nats between an fp32 actor and an fp32 learner of equal weights."""


def max_logprob_gap(
    actor_logprobs: Sequence[Sequence[float]], learner_logprobs: Sequence[Sequence[float]]
) -> float:
    """Largest absolute difference in nats over all tokens; 0 for none, infinity where one is not a number.

    Raises ValueError when the two sides do not hold the same completions.
    """
    lengths = [[len(row) for row in side] for side in (actor_logprobs, learner_logprobs)]
    if lengths[0] != lengths[1]:
        raise ValueError(f"actor and learner rows differ in length: {lengths[0]} and {lengths[1]}")
    gaps = (
        abs(actor - learner)
        for actor_row, learner_row in zip(actor_logprobs, learner_logprobs, strict=True)
        for actor, learner in zip(actor_row, learner_row, strict=True)
    )
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


@torch.no_grad()
def plain_logprobs(
    model: Any,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> list[list[float]]:
    """Log-probabilities in nats of each completion's tokens after one prompt: one plain forward a row.

    ``model`` is a transformers causal language model. No padding, no cache, no sharing: the slow
    reference. ``temperature`` 0 scores like 1, as engines do for greedy sampling.
    """
    return [_score_row(model, prompt_ids, row, temperature or 1.0) for row in completions]


def _score_row(
    model: Any, prompt_ids: Sequence[int], completion: Sequence[int], temperature: float
) -> list[float]:
    if not completion:
        return []
    ids_1T = torch.tensor([[*prompt_ids, *completion]], device=model.device)
    logits_TV = model(ids_1T, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].float()
    logprobs_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
    targets_T1 = ids_1T[0, len(prompt_ids) :, None]
    return logprobs_TV.gather(1, targets_T1)[:, 0].tolist()


def wanted_tensors(model_dir: Path) -> frozenset[str]:
    """Names of the tensors that weights of this model must have, from the headers of its own files.

    The output head of a model that ties it to its embeddings may be absent. Raises StoreError.
    """
    wanted = frozenset[str]().union(
        *(tensor_names(path) for path in sorted(model_dir.glob("*.safetensors")))
    )
    config = json.loads((model_dir / "config.json").read_bytes())
    return wanted - {"lm_head.weight"} if config.get("tie_word_embeddings") else wanted


def tensor_names(path: Path) -> frozenset[str]:
    """Names of a safetensors file's tensors. Raises StoreError for one shorter than its header says."""
    try:
        with safe_open(path, framework="np") as weights:
            return frozenset(weights.keys())
    except (OSError, SafetensorError) as error:
        raise StoreError(f"weights {path}: not a whole safetensors file ({error})") from error
