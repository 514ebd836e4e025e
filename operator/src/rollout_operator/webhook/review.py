"""What the validating webhook answers: an admission request in, a verdict out. Pure.

The rules are those of the command line (``rollout_api.checks``), with what is known here: that it is a
cluster. What the schema and its CEL rules refuse never gets this far. An object that was let in under
older rules stays editable: an update is refused for what it breaks, not for what was broken before.
Deletion is never asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_api.checks import check_document, check_together
from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem, Severity

WARNING_LENGTH_MAX = 256
"""The API server cuts longer warnings once there are many of them."""
NUM_WARNINGS_MAX = 16
FACTS = Facts(platform="cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``message`` is for the person whose request is refused; warnings go to everybody."""

    allowed: bool
    message: str = ""
    warnings: tuple[str, ...] = ()


def review(request: Mapping[str, Any]) -> Verdict:
    """The answer to one ``AdmissionReview.request`` (CREATE or UPDATE; anything else passes)."""
    new = request.get("object")
    if request.get("operation") not in ("CREATE", "UPDATE") or not new or _is_leaving(new):
        return Verdict(allowed=True)
    problems = find_problems(new)
    errors = [problem for problem in problems if problem.severity is Severity.error]
    known = _known(request) if errors else frozenset()
    fresh = [problem for problem in errors if _identity(problem) not in known]
    if fresh:
        return Verdict(allowed=False, message="\n".join(map(str, fresh)))
    return Verdict(allowed=True, warnings=tuple(_warnings(problems)))


def find_problems(document: Mapping[str, Any]) -> Sequence[Problem]:
    """Every problem of one object, as the command line finds them for a cluster."""
    alone = check_document(document, FACTS)
    if any(problem.severity is Severity.error for problem in alone):
        return alone
    return [*alone, *(problem for _, problem in check_together([document]))]


def _known(request: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """What was wrong with the object before an update."""
    old = request.get("oldObject")
    if request.get("operation") != "UPDATE" or not old:
        return frozenset()
    return frozenset(map(_identity, find_problems(old)))


def _identity(problem: Problem) -> tuple[str, str]:
    return problem.field, problem.reason


def _is_leaving(document: Mapping[str, Any]) -> bool:
    return bool((document.get("metadata") or {}).get("deletionTimestamp"))


def _warnings(problems: Iterable[Problem]) -> list[str]:
    found = [str(problem) for problem in problems]
    return [_cut(text) for text in found[:NUM_WARNINGS_MAX]]


def _cut(text: str) -> str:
    return text if len(text) <= WARNING_LENGTH_MAX else text[: WARNING_LENGTH_MAX - 3] + "..."
