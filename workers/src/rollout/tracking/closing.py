"""The end of trackers: all at once, within one deadline, whatever one of them does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from rollout.run_events import RunEnd
from rollout.seams import Tracker

CLOSE_SECONDS_MAX = 30.0
"""For all of them together."""

log = logging.getLogger(__name__)


def close_trackers(
    trackers: Sequence[Tracker], outcome: RunEnd | None, seconds: float = CLOSE_SECONDS_MAX
) -> None:
    """Close them beside each other. One that fails, or is not done in time, is named in the log and left."""
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_close, args=(tracker, outcome), daemon=True)
        for tracker in trackers
    ]
    for thread in threads:
        thread.start()
    for tracker, thread in zip(trackers, threads, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.error(
                "%s has not closed within %g s and is left: what it held may be lost there; metrics.jsonl has every step",
                type(tracker).__name__,
                seconds,
            )


def _close(tracker: Tracker, outcome: RunEnd | None) -> None:
    try:
        tracker.close(outcome)
    except Exception:
        # A tracker is somebody else's service: it must not fail the end of a run, and must be seen.
        log.exception("%s did not close", type(tracker).__name__)
