"""Documents of one file together: names, references between runs, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_api.model_sources import needed_runs
from rollout_api.problems import Problem

Document = Mapping[str, Any]


def check_together(documents: Sequence[Document]) -> list[tuple[int, Problem]]:
    """Problems between documents, each with the index of the document it belongs to."""
    return [*_names(documents), *_cycles(documents)]


def _names(documents: Sequence[Document]) -> Iterator[tuple[int, Problem]]:
    seen: dict[tuple[str, str], int] = {}
    for index, document in enumerate(documents):
        key = (str(document.get("kind")), _name(document))
        if key in seen:
            yield (
                index,
                Problem(
                    field="metadata.name",
                    reason="DuplicateName",
                    message=f"two documents of kind {key[0]} are called {key[1]!r}",
                    fix="give each a name of its own",
                ),
            )
        seen.setdefault(key, index)


def _cycles(documents: Sequence[Document]) -> Iterator[tuple[int, Problem]]:
    edges = {_name(document): needed_runs(document) for document in documents}
    told: set[str] = set()
    for index, document in enumerate(documents):
        path = _path_back(_name(document), edges)
        if path and not told.intersection(path):
            told.update(path)
            yield (
                index,
                Problem(
                    field="spec.model.fromRun.name",
                    reason="Cycle",
                    message=f"the run waits for itself: {' -> '.join(path)}",
                    fix="start one of them from a model uri",
                ),
            )


def _path_back(start: str, edges: Mapping[str, Sequence[str]]) -> list[str]:
    """A shortest way from a run back to itself through fromRun; empty when there is none."""
    paths, seen = [[start]], set[str]()
    while paths:
        path = paths.pop(0)
        for following in edges.get(path[-1], ()):
            if following == start:
                return [*path, start]
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return []


def _name(document: Document) -> str:
    return str(document.get("metadata", {}).get("name", ""))
