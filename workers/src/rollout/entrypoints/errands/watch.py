"""The pod that watches an endpoint's canary: ``python -m rollout.entrypoints.errands.watch``; the order is in ``ROLLOUT_WATCH_ORDER``.

What it has seen goes out as the container's termination message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rollout.entrypoints.errands.sent import read_errand, run_errand
from rollout.inference.canary_watch import watch_canary
from rollout_api.serving import WATCH_VARIABLE, WatchOrder


def main() -> int:
    """Watch one canary; the exit code."""
    return run_errand(_watch)


def _watch() -> str:
    figures = watch_canary(read_watch_order(os.environ))
    return figures.model_dump_json(by_alias=True, exclude_none=True)


def read_watch_order(environment: Mapping[str, str]) -> WatchOrder:
    """The order. Raises SpecError."""
    return read_errand(environment, WATCH_VARIABLE, WatchOrder, "watch")


if __name__ == "__main__":
    sys.exit(main())
