"""The pod that watches an endpoint's canary: ``python -m rollout.entrypoints.errands.watch``; the order is in ``ROLLOUT_WATCH_ORDER``.

What it has seen goes out as the container's termination message.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from pydantic import ValidationError

from rollout.entrypoints.config import LAST_WORD_VARIABLE, leave_text, run_process
from rollout.entrypoints.pod import TERMINATION_LOG
from rollout.errors import SpecError
from rollout.inference.canary_watch import watch_canary
from rollout_api.serving import WATCH_VARIABLE, WatchOrder


def main() -> int:
    """Watch one canary; the exit code."""
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    # The first process of a container has no default for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run_process(_watch)


def _watch() -> None:
    figures = watch_canary(read_watch_order(os.environ))
    leave_text(figures.model_dump_json(by_alias=True, exclude_none=True))


def read_watch_order(environment: Mapping[str, str]) -> WatchOrder:
    """The order. Raises SpecError."""
    try:
        return WatchOrder.model_validate_json(environment.get(WATCH_VARIABLE, ""))
    except ValidationError as error:
        raise SpecError(f"{WATCH_VARIABLE} is no order to watch: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
