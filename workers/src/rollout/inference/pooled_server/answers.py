"""Vectors and scores in the shapes of OpenAI's and vLLM's answers. Pure.

Axes: N sequences, D numbers of a vector, L labels.
"""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rollout.engines.pooled.module import activate, finish_vectors
from rollout.inference.pooled_server.orders import PooledFacts, PooledOrder


class NotFiniteError(Exception):
    """A model gave what is no number: JSON has no form for it, and a client no use."""


def tell_embeddings(
    order: PooledOrder, numbers: Tensor, facts: PooledFacts, head: dict[str, Any]
) -> bytes:
    """Of ``/v1/embeddings``. Raises NotFiniteError."""
    vectors_ND = finish_vectors(
        numbers, normalised=facts.model.normalised, dimensions=order.dimensions
    )
    rows = require_finite(vectors_ND)
    packed = order.encoding == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _pack(row) if packed else row.tolist()}
        for i, row in enumerate(rows)
    ]
    return msgspec.json.encode({**head, "object": "list", "data": data, **_usage(order)})


def tell_classes(
    order: PooledOrder, numbers: Tensor, facts: PooledFacts, head: dict[str, Any]
) -> bytes:
    """Of ``/classify``. Raises NotFiniteError."""
    rows = require_finite(activate(numbers, order.activation))
    labels = facts.model.labels
    data = [
        {
            "index": i,
            "label": labels[int(row.argmax())],
            "probs": row.tolist(),
            "num_classes": len(labels),
        }
        for i, row in enumerate(rows)
    ]
    return msgspec.json.encode({**head, "object": "list", "data": data, **_usage(order)})


def tell_scores(
    order: PooledOrder, numbers: Tensor, facts: PooledFacts, head: dict[str, Any]
) -> bytes:
    """Of ``/score``. Raises NotFiniteError."""
    del facts
    scores = _scores(order, numbers)
    data = [{"index": i, "object": "score", "score": one} for i, one in enumerate(scores)]
    return msgspec.json.encode({**head, "object": "list", "data": data, **_usage(order)})


def tell_ranking(
    order: PooledOrder, numbers: Tensor, facts: PooledFacts, head: dict[str, Any]
) -> bytes:
    """Of ``/rerank``: best first, of equals the earlier first. Raises NotFiniteError."""
    del facts
    scores = _scores(order, numbers)
    ranked = sorted(range(len(scores)), key=lambda place: -scores[place])[: order.top]
    results = [
        {
            "index": place,
            "document": {"text": order.documents[place]},
            "relevance_score": scores[place],
        }
        for place in ranked
    ]
    told = {"id": head["id"], "model": head["model"], "results": results, **_usage(order)}
    return msgspec.json.encode(told)


def build_head(prefix: str, request_id: str, model: str) -> dict[str, Any]:
    """What every answer begins with."""
    return {"id": f"{prefix}-{request_id}", "created": int(time.time()), "model": model}


def require_finite(numbers: Tensor) -> np.ndarray:
    """The rows as float32 on their own. Raises NotFiniteError."""
    if not bool(torch.isfinite(numbers).all()):
        raise NotFiniteError("the model gave a number that is not finite")
    return numbers.numpy().astype("<f4")


def _scores(order: PooledOrder, numbers: Tensor) -> list[float]:
    if order.num_queries:
        queries, documents = numbers[: order.num_queries], numbers[order.num_queries :]
        found = functional.cosine_similarity(queries, documents, dim=-1)
        return require_finite(found).tolist()
    return require_finite(activate(numbers, order.activation)[:, 0]).tolist()


def _pack(row: np.ndarray) -> str:
    return base64.b64encode(row.tobytes()).decode()


def _usage(order: PooledOrder) -> dict[str, Any]:
    num = order.num_tokens
    return {"usage": {"prompt_tokens": num, "completion_tokens": 0, "total_tokens": num}}
