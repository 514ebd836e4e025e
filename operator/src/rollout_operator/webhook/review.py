"""What the validating webhook answers: an admission request in, a verdict out. Pure.

The rules are those of the command line (``rollout_api.checks``), with what is known here: that it is a
cluster. What the schema and its CEL rules refuse never gets this far. An object that was let in under
older rules stays editable: an update is refused for what it breaks, not for what was broken before. Another value
that is refused, at the same place and for the same reason, is broken by the update.
Deletion is never asked about.
"""

from __future__ import annotations

import re
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
MEASURES = frozenset({"TooLarge"})
"""Reasons whose message counts the whole spec, and is another one after any edit."""
Identity = tuple[str, str, str, str]


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
    fresh = [problem for problem in errors if _identify(problem, new) not in known]
    if fresh:
        return Verdict(allowed=False, message="\n".join(map(str, fresh)))
    return Verdict(allowed=True, warnings=tuple(_warnings(problems)))


def find_problems(document: Mapping[str, Any]) -> Sequence[Problem]:
    """Every problem of one object, as the command line finds them for a cluster."""
    alone = check_document(document, FACTS)
    if any(problem.severity is Severity.error for problem in alone):
        return alone
    return [*alone, *(problem for _, problem in check_together([document]))]


def _known(request: Mapping[str, Any]) -> frozenset[Identity]:
    """What was wrong with the object before an update."""
    old = request.get("oldObject")
    if request.get("operation") != "UPDATE" or not old:
        return frozenset()
    return frozenset(_identify(problem, old) for problem in find_problems(old))


def _identify(problem: Problem, document: Mapping[str, Any]) -> Identity:
    """What makes a problem the same one: its place, its rule, and the value that was refused.

    Messages name the values, cut where they are long, so a text that stands there counts as a whole.
    """
    told = "" if problem.reason in MEASURES else problem.message
    return problem.field, problem.reason, told, _text_at(document, problem.field)


def _text_at(document: Mapping[str, Any], field: str) -> str:
    """The text at a path such as ``spec.env[0].name``; empty where something else stands, or nothing."""
    found: Any = document
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        if name and isinstance(found, Mapping):
            found = found.get(name)
        elif index and isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            return ""
    return found if isinstance(found, str) else ""


def _is_leaving(document: Mapping[str, Any]) -> bool:
    return bool((document.get("metadata") or {}).get("deletionTimestamp"))


def _warnings(problems: Iterable[Problem]) -> list[str]:
    found = [str(problem) for problem in problems]
    return [_cut(text) for text in found[:NUM_WARNINGS_MAX]]


def _cut(text: str) -> str:
    return text if len(text) <= WARNING_LENGTH_MAX else text[: WARNING_LENGTH_MAX - 3] + "..."
