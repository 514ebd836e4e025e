"""Calls of trackers: somebody else's services, which must not stop a run, and whose trouble must be seen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rollout.coordinator.context import RunContext

log = logging.getLogger(__name__)


def tell(run: RunContext, index: int, what: str, call: Callable[[], None]) -> None:
    """Call the tracker at ``index``. One that refuses is in trouble with ``what`` it is told of, until it takes the next of that."""
    name = type(run.trackers[index]).__name__
    try:
        call()
    except Exception as error:
        run.bad_trackers[f"{name} {index} {what}"] = f"{name}: {error}"
        log.exception("tracker=%s takes no %s", name, what)
    else:
        run.bad_trackers.pop(f"{name} {index} {what}", None)
