"""Why servers do not come up, from their pods: one line of the worst that is said of one of them. Pure.

What a pod says is its own word, cut short and made visible; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollout_api import names
from rollout_api.visible import visible

Document = Mapping[str, Any]
WORDS_MAX = 400
_COMING = frozenset({"ContainerCreating", "PodInitializing"})


def find_trouble(pods: Iterable[Document], revision: str) -> str:
    """Of pods of a revision; empty where all that can be said is that they are coming."""
    ordered = sorted(pods, key=lambda pod: pod["metadata"]["name"])
    mine = [pod for pod in ordered if _revision(pod) == revision]
    return next((words for pod in mine for words in _words(pod)), "")


def _revision(pod: Document) -> str:
    return (pod["metadata"].get("labels") or {}).get(names.LABEL_REVISION, "")


def _words(pod: Document) -> Iterator[str]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for one in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        if words := _of_container(one):
            yield _cut(f"pod {name}, container {one['name']}: {words}")
    for one in status.get("conditions") or ():
        if (one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable"):
            yield _cut(f"pod {name}: Unschedulable: {one.get('message', '')}")


def _of_container(one: Document) -> str:
    waiting = (one.get("state") or {}).get("waiting") or {}
    state, last = one.get("state") or {}, one.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    reason = waiting.get("reason", "")
    if ended.get("exitCode"):
        said = ended.get("message") or ended.get("reason") or f"exit code {ended['exitCode']}"
        return f"{reason}: {said}" if reason else said
    if not reason or reason in _COMING:
        return ""
    return f"{reason}: {waiting.get('message', '')}"


def _cut(text: str) -> str:
    plain = visible(" ".join(text.split()))
    return plain if len(plain) <= WORDS_MAX else f"{plain[: WORDS_MAX - 3]}..."
