"""Validates manifest documents: parsing by ``rollout_api``, then the plan-time checks.

The same rules run in the admission webhook and in the reconciler; here each problem also gets the
line it stands on; and the Python files that lie beside the manifest are read, which only this machine has.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout_api.problems import Problem, Severity

NO_REWARD = "MissingReward"
REWARDS = "spec.train.rewards["


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A problem and where it stands."""

    source: str
    line: int
    problem: Problem

    def __str__(self) -> str:
        """One line for an error message."""
        return f"{self.source}:{self.line}: {self.problem}"


def validate_documents(
    documents: Sequence[Document], *, replaces_rewards: bool = False
) -> list[Located]:
    """Every problem of every document, in file order; empty when all are valid.

    ``replaces_rewards``: functions are given in place of ``train.rewards``, which may be missing, and whose files nobody opens then.
    """
    from rollout_api.checks import check_document, check_together

    located = [
        Located(source=document.source, line=document.line(problem.field), problem=problem)
        for document in documents
        for problem in check_document(document.data)
        if not (replaces_rewards and problem.reason == NO_REWARD)
    ]
    if any(item.problem.severity is Severity.error for item in located):
        return located
    located += [
        one
        for one in _user_files(documents)
        if not (replaces_rewards and one.problem.field.startswith(REWARDS))
    ]
    for index, problem in check_together([document.data for document in documents]):
        document = documents[index]
        located.append(
            Located(source=document.source, line=document.line(problem.field), problem=problem)
        )
    return located


def _user_files(documents: Sequence[Document]) -> Iterator[Located]:
    from rollout.runs.prepare import base_folder
    from rollout.runs.user_files import check_user_files

    for document in documents:
        if document.data.get("kind") == "RolloutRun":
            folder = base_folder(document.source)
            for problem in check_user_files(document.data["spec"], folder):
                line = document.line(problem.field)
                yield Located(source=document.source, line=line, problem=problem)


def require_valid(
    documents: Sequence[Document], *, replaces_rewards: bool = False
) -> list[Located]:
    """Return the warnings; raise SpecError with every error, each with file and line."""
    located = validate_documents(documents, replaces_rewards=replaces_rewards)
    errors = [item for item in located if item.problem.severity is Severity.error]
    if errors:
        raise SpecError("the manifest is not valid:\n  " + "\n  ".join(map(str, errors)))
    return located


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Set ``path=value`` pairs under ``spec`` (``train.maxSteps=50``); values are read as YAML.

    Raises SpecError when an item has no ``=`` or its path meets something that is not a mapping.
    """
    values: dict[str, Any] = {}
    for item in overrides:
        path, separator, value = item.partition("=")
        if not separator:
            raise SpecError(f"--set {item}: expected path=value, such as train.maxSteps=50")
        values[path] = parse_scalar(value)
    return apply_values(document, values)


def apply_values(document: Document, values: Mapping[str, Any]) -> Document:
    """Set fields of a document by path under ``spec``; the document given is left as it is."""
    data = copy.deepcopy(document.data)
    for path, value in values.items():
        _set(data, _full_path(path), value, f"{path}={value}")
    return Document(source=document.source, data=data, lines=document.lines)


def _full_path(path: str) -> list[str | int]:
    from rollout.runs.manifest import parse_path

    parts = list(parse_path(path))
    return parts if parts and parts[0] in {"spec", "metadata"} else ["spec", *parts]


def _set(data: Any, path: list[str | int], value: Any, item: str) -> None:
    for part, following in itertools.pairwise(path):
        if isinstance(data, dict):
            data = data.setdefault(part, [] if isinstance(following, int) else {})
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            raise SpecError(f"--set {item}: {part!r} is not a mapping or a list in this manifest")
    last, container = path[-1], data
    in_list = isinstance(data, list) and isinstance(last, int) and last < len(data)
    if not (isinstance(data, dict) or in_list):
        raise SpecError(f"--set {item}: cannot set {last!r} there")
    container[last] = value


def parse_scalar(text: str) -> Any:
    """A command-line value as YAML: numbers, true/false, null, flow mappings, else a string."""
    from rollout.runs.yaml_reading import load_plain

    return load_plain(repr(text), text) if text else ""
