"""Whether a place keeps the conditions of its writes: some servers take them and do not look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rollout.errors import PlaceUnreachable, PreconditionFailed, StoreError
from rollout.objects.named.contract import NamedObjects


def require_conditions(objects: NamedObjects) -> None:
    """Raise PlaceUnreachable, with the fix, where nothing can be written now or a condition is not kept."""
    name = f"probe/{os.getpid()}-{time.time_ns()}"
    try:
        tag = objects.create(name, b"rollout")
        later = objects.replace(name, b"rollout again", tag)
        kept = (
            _is_refused(lambda: objects.create(name, b"another"))
            and _is_refused(lambda: objects.replace(name, b"another", tag))
            and _is_refused(lambda: objects.delete(name, tag))
        )
        _remove(objects, name, later)
    except StoreError as error:
        raise PlaceUnreachable(f"{objects.place}: {error}") from error
    if not kept:
        raise PlaceUnreachable(
            f"{objects.place}: it does not keep the conditions of writes (If-None-Match, If-Match), so that"
            " two writers would overwrite each other; use a newer server, or another place"
        )


def _is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PreconditionFailed:
        return True
    return False


def _remove(objects: NamedObjects, name: str, tag: str) -> None:
    try:
        objects.delete(name, tag)
    except PreconditionFailed:
        found = objects.get(name, 64)
        if found is not None:
            objects.delete(name, found.tag)
