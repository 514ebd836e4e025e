"""The pod that reads a snapshot which exists: ``python -m rollout.entrypoints.errands.adopt``; the order is in ``ROLLOUT_ADOPT_ORDER``.

What it is goes out as the container's termination message, and so does why it is refused. Nothing is written anywhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import msgspec
from pydantic import ValidationError

from rollout.entrypoints.config import LAST_WORD_VARIABLE, leave_text, run_process
from rollout.entrypoints.pod import TERMINATION_LOG
from rollout.errors import SpecError
from rollout.protocol import messages as m
from rollout.runs.snapshots.adopting import adopt
from rollout_api.worker import AdoptOrder

ORDER_VARIABLE = "ROLLOUT_ADOPT_ORDER"
ANSWER_CHARACTERS_MAX = 4000
"""A kubelet takes 4096 bytes."""


def main() -> int:
    """Read one snapshot; the exit code."""
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    # The first process of a container has no default for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run_process(
        lambda: leave_text(render(adopt(read_order(os.environ))), ANSWER_CHARACTERS_MAX)
    )


def read_order(environment: Mapping[str, str]) -> AdoptOrder:
    """The order. Raises SpecError."""
    try:
        return AdoptOrder.model_validate_json(environment.get(ORDER_VARIABLE, ""))
    except ValidationError as error:
        raise SpecError(f"{ORDER_VARIABLE} is no order to read a snapshot: {error}") from error


def render(state: m.SnapshotState) -> str:
    """In one line of JSON."""
    return msgspec.json.encode(state).decode()


if __name__ == "__main__":
    sys.exit(main())
