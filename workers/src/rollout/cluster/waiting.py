"""Whether what a person waits for has come, is still to come, or cannot come any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.cluster.objects import Object, condition, dig

ENDS = {"Complete": "Failed", "Failed": "Complete"}
"""Endings that exclude one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """``met`` None: go on waiting. ``why`` says what is so now."""

    met: bool | None
    why: str


def judge(obj: Object, wanted: str) -> Wait:
    """Look at an object for the condition ``wanted`` (``Ready``, ``Finished``, ``Suspended=False`` ...)."""
    kind, _, status = wanted.partition("=")
    status = status or "True"
    found = condition(obj, kind)
    why = _why(obj)
    if _is_current(obj) and (found.get("status") or "False") == status:
        return Wait(met=True, why=_say(kind, found) if found else f"{kind}={status}")
    if status == "True" and _is_over(obj, kind):
        return Wait(met=False, why=why)
    return Wait(met=None, why=why)


def _is_current(obj: Object) -> bool:
    """Whether the status speaks about the spec as it is now."""
    observed = dig(obj, "status.observedGeneration")
    return observed is not None and observed >= (dig(obj, "metadata.generation") or 0)


def _is_over(obj: Object, kind: str) -> bool:
    other = ENDS.get(kind)
    if other is not None:
        return condition(obj, other).get("status") == "True"
    return kind != "CleanedUp" and condition(obj, "Finished").get("status") == "True"


def _why(obj: Object) -> str:
    for kind in ("Finished", "Stalled", "Reconciling", "Ready"):
        found = condition(obj, kind)
        if found.get("status") == "True" or (found and kind == "Ready"):
            return _say(kind, found)
    return "it has no status yet: does an operator serve this namespace?"


def _say(kind: str, found: Object) -> str:
    message = f": {found['message']}" if found.get("message") else ""
    return f"{kind}={found.get('status')} ({found.get('reason')}){message}"
