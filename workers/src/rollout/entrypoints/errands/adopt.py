"""The pod that reads a snapshot which exists: ``python -m rollout.entrypoints.errands.adopt``; the order is in ``ROLLOUT_ADOPT_ORDER``.

What it is goes out as the container's termination message, and so does why it is refused. Nothing is written anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from rollout.entrypoints.errands.sent import read_errand, run_errand
from rollout.protocol import messages as m
from rollout.runs.snapshots.adopting import adopt
from rollout_api.worker import AdoptOrder

ORDER_VARIABLE = "ROLLOUT_ADOPT_ORDER"
ANSWER_CHARACTERS_MAX = 4000
"""A kubelet takes 4096 bytes."""


def main() -> int:
    """Read one snapshot; the exit code."""
    return run_errand(lambda: render(adopt(read_order(os.environ))), ANSWER_CHARACTERS_MAX)


def read_order(environment: Mapping[str, str]) -> AdoptOrder:
    """The order. Raises SpecError."""
    return read_errand(environment, ORDER_VARIABLE, AdoptOrder, "read a snapshot")


def render(state: m.SnapshotState) -> str:
    """In one line of JSON."""
    return msgspec.json.encode(state).decode()


if __name__ == "__main__":
    sys.exit(main())
