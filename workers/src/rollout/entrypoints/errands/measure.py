"""The pod that measures an endpoint's candidate: ``python -m rollout.entrypoints.errands.measure``; the order is in ``ROLLOUT_MEASURE_ORDER``.

What it has found goes out as the container's termination message, and so does why there is nothing. Prompts and answers
are the pod's own, and end with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollout.entrypoints.errands.sent import read_errand, run_errand
from rollout.evaluations.remote.candidate import measure_candidate
from rollout_api.serving import MEASURE_KEY_VARIABLE, MEASURE_VARIABLE, MeasureOrder
from rollout_api.v1alpha1.inference.endpoint import Measured

ANSWER_CHARACTERS_MAX = 4000
"""A kubelet takes 4096 bytes."""


def main() -> int:
    """Measure one candidate; the exit code."""
    return run_errand(_measure, ANSWER_CHARACTERS_MAX)


def _measure() -> str:
    order, key = read_order(os.environ), os.environ.get(MEASURE_KEY_VARIABLE, "").strip()
    with tempfile.TemporaryDirectory() as folder:
        return render(measure_candidate(order, key, Path(folder)))


def read_order(environment: Mapping[str, str]) -> MeasureOrder:
    """The order. Raises SpecError."""
    return read_errand(environment, MEASURE_VARIABLE, MeasureOrder, "measure")


def render(found: Sequence[Measured]) -> str:
    """In one line of JSON."""
    plain = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in found]
    return msgspec.json.encode(plain).decode()


if __name__ == "__main__":
    sys.exit(main())
