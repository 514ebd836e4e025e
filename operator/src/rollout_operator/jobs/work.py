"""The Job of an errand as the API server shows it, and what its pods say. Pure.

The words are those of our own container, but in a tenant's pod: they are shown, cut and plain, and decide nothing. What
decides is the Job's own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_api.conditions import Reason
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.run.plan.termination import reason_of

Document = Mapping[str, Any]
WORDS_MAX, ANSWER_MAX = 600, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The Job as it is. ``words`` are what its pods say, and may be a tenant's: plain and short.

    ``answer`` is what the pod that ended well has said, whole: to be read strictly, or not at all.
    """

    state: Literal["Running", "Done", "Failed"]
    reason: Reason = Reason.PURGING
    words: str = ""
    answer: str = ""


def parse_work(job: Document, pods: Iterable[Document]) -> Work:
    """How far it is; the words are the newest pod's, or the last of one that has ended."""
    ends = {
        one["type"]: one
        for one in (job.get("status") or {}).get("conditions") or ()
        if one.get("status") == "True"
    }
    own = [one for one in pods if controller_uid(one["metadata"], "batch", "Job") == _uid(job)]
    own.sort(key=lambda one: one["metadata"].get("creationTimestamp", ""))
    if "Complete" in ends:
        good = [words for one in own if (words := _words_of(one, failed=False))]
        answer = good[-1][:ANSWER_MAX] if good else ""
        return Work(state="Done", words=_plain(answer), answer=answer)
    said = [words for one in own if (words := _words_of(one, failed=True))]
    reason, words = _judge(said[-1]) if said else (Reason.PURGING, "")
    if "Failed" in ends:
        words = words or _plain(ends["Failed"].get("message", ""))
        return Work(state="Failed", reason=reason, words=words)
    return Work(state="Running", reason=reason, words=words)


def _uid(job: Document) -> str:
    return job["metadata"]["uid"]


def _words_of(pod: Document, *, failed: bool) -> str:
    """Why it cannot start or how its container has failed, or else its good end; empty of one that is at work."""
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        if (ended := state.get("terminated")) is not None:
            told = ended.get("message") or ended.get("reason") or "ended"
            return told if failed == bool(ended.get("exitCode")) else ""
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable":
            return f"Unschedulable: {one.get('message', '')}"
    return ""


def _judge(words: str) -> tuple[Reason, str]:
    """The reason that an error's name stands for."""
    kind = words.partition(":")[0]
    if kind in ("ErrImagePull", "ImagePullBackOff"):
        return Reason.IMAGE_PULL_FAILED, _plain(words)
    if kind == "Unschedulable":
        return Reason.UNSCHEDULABLE, _plain(words)
    return reason_of(kind), _plain(words)


def _plain(text: str) -> str:
    return "".join(_printable(text[:WORDS_MAX])).strip()


def _printable(text: str) -> Iterator[str]:
    yield from (one if one.isprintable() else " " for one in text)
