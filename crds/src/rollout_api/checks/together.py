"""Documents of one file together: names, references between runs, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_api.checks.pods.allowed import find_not_allowed, find_unserved
from rollout_api.fields.model_sources import needed_runs
from rollout_api.parse import parse_object
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRun
from rollout_api.v1alpha1.runtime import ClusterRolloutRuntime, ClusterRuntimeSpec, RolloutRuntime

Document = Mapping[str, Any]
Runtime = RolloutRuntime | ClusterRolloutRuntime
RUNTIMES = ("RolloutRuntime", "ClusterRolloutRuntime")


def check_together(documents: Sequence[Document]) -> list[tuple[int, Problem]]:
    """Problems between documents, each with the index of the document it belongs to."""
    return [*_names(documents), *_cycles(documents), *_runtimes(documents)]


def _names(documents: Sequence[Document]) -> Iterator[tuple[int, Problem]]:
    seen: dict[tuple[str, str, str], int] = {}
    for index, document in enumerate(documents):
        key = (str(document.get("kind")), _name(document), _namespace(document))
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
    """Runs that wait for themselves; `fromRun` names a run of the same namespace."""
    edges: dict[str, dict[str, Sequence[str]]] = {}
    for document in documents:
        edges.setdefault(_namespace(document), {})[_name(document)] = needed_runs(document)
    told: set[tuple[str, str]] = set()
    for index, document in enumerate(documents):
        namespace = _namespace(document)
        path = _path_back(_name(document), edges[namespace])
        members = {(namespace, name) for name in path}
        if path and not told.intersection(members):
            told.update(members)
            yield (
                index,
                Problem(
                    field="spec.model.fromRun.name",
                    reason="Cycle",
                    message=f"the run waits for itself: {' -> '.join(path)}",
                    fix="start one of them from a model uri",
                ),
            )


def _runtimes(documents: Sequence[Document]) -> Iterator[tuple[int, Problem]]:
    """Runs beside their runtime: what it does not allow. A runtime that is not among the documents is not known."""
    runtimes = [parse_object(one) for one in documents if one.get("kind") in RUNTIMES]
    known = {_place(one): one for one in runtimes if isinstance(one, Runtime)}
    for index, document in enumerate(documents):
        run = parse_object(document) if known and document.get("kind") == "RolloutRun" else None
        if isinstance(run, RolloutRun):
            found = next((known[key] for key in _runtime_places(run) if key in known), None)
            problems = check_runtime_allows(run, found) if found is not None else ()
            yield from ((index, problem) for problem in problems)


def check_runtime_allows(
    run: RolloutRun,
    runtime: Runtime,
    labels: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """What a run's runtime refuses, as far as its namespace, and the ``labels`` of that, are known."""
    namespace, spec = run.metadata.namespace, runtime.spec
    if isinstance(spec, ClusterRuntimeSpec):
        name = runtime.metadata.name
        yield from find_unserved(spec.allowed_namespaces, name, namespace, labels)
    yield from find_not_allowed(run.spec, spec.allowed, namespace)


def _place(runtime: Runtime) -> tuple[str, str | None, str]:
    cluster = isinstance(runtime, ClusterRolloutRuntime)
    namespace = None if cluster else runtime.metadata.namespace
    return runtime.kind, namespace, runtime.metadata.name


def _runtime_places(run: RolloutRun) -> tuple[tuple[str, str | None, str], ...]:
    """Where a run's runtime may be: what it names, else ``default`` of the namespace or the cluster."""
    reference, namespace = run.spec.runtime_ref, run.metadata.namespace
    if reference is None:
        return ("RolloutRuntime", namespace, "default"), ("ClusterRolloutRuntime", None, "default")
    inside = namespace if reference.kind == "RolloutRuntime" else None
    return ((reference.kind, inside, reference.name),)


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


def _namespace(document: Document) -> str:
    """Empty where the document leaves it to whoever applies it."""
    return str(document.get("metadata", {}).get("namespace") or "")


def _name(document: Document) -> str:
    return str(document.get("metadata", {}).get("name", ""))
