"""The pod that measures an endpoint's candidate: ``python -m rollout.entrypoints.errands.measure``; the order is in ``ROLLOUT_MEASURE_ORDER``.

What it has found goes out as the container's termination message, and so does why there is nothing. Prompts and answers
are the pod's own, and end with it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from pydantic import ValidationError

from rollout.entrypoints.config import LAST_WORD_VARIABLE, leave_text, run_process
from rollout.entrypoints.pod import TERMINATION_LOG
from rollout.errors import SpecError
from rollout.evaluations.remote.candidate import measure_candidate
from rollout_api.serving import MEASURE_KEY_VARIABLE, MEASURE_VARIABLE, MeasureOrder
from rollout_api.v1alpha1.inference.endpoint import Measured

ANSWER_CHARACTERS_MAX = 4000
"""A kubelet takes 4096 bytes."""


def main() -> int:
    """Measure one candidate; the exit code."""
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    # The first process of a container has no default for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run_process(_measure)


def _measure() -> None:
    order, key = read_order(os.environ), os.environ.get(MEASURE_KEY_VARIABLE, "").strip()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_candidate(order, key, Path(folder))
    leave_text(render(found), ANSWER_CHARACTERS_MAX)


def read_order(environment: Mapping[str, str]) -> MeasureOrder:
    """The order. Raises SpecError."""
    try:
        return MeasureOrder.model_validate_json(environment.get(MEASURE_VARIABLE, ""))
    except ValidationError as error:
        raise SpecError(f"{MEASURE_VARIABLE} is no order to measure: {error}") from error


def render(found: Sequence[Measured]) -> str:
    """In one line of JSON."""
    plain = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in found]
    return msgspec.json.encode(plain).decode()


if __name__ == "__main__":
    sys.exit(main())
