"""Every model that a spec names, as it is written: found in documents that nothing has checked yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_api.v1alpha1.training.algorithms import TRAITS


def model_sources(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The model that is trained, its reference, the algorithm's own, and those that give reward; empty for none."""
    train = _inner(spec, "train")
    algorithm = _inner(train, "algorithm")
    yield _inner(spec, "model")
    yield _inner(train, "reference")
    for name, traits in TRAITS.items():
        for path in traits.models.values():
            yield _inner(algorithm, name, *path)
    for reward in train.get("rewards") or ():
        yield _inner(reward or {}, "model")


def needed_runs(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the runs whose results a manifest starts from, the policy's first; each once."""
    found = [_inner(one, "fromRun").get("name") for one in model_sources(_inner(document, "spec"))]
    return tuple(dict.fromkeys(name for name in found if name))


def _inner(document: Mapping[str, Any], *path: str) -> dict[str, Any]:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
