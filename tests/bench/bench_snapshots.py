"""Snapshots beside the raw calls they are made of: the same bytes, file caches dropped, in turns.

``run.py snapshots [GIGABYTES] [PART]`` (``make bench TARGET="snapshots 0.25"``): 1 by default, of which a third are weights and the
rest optimizer state, in folders under ``BENCH_DIR`` (default: the temporary folder). A part is ``state``, ``bucket``, ``buffer``,
``sealed``, ``standby`` or ``imaged``; without a size of state ``run.py snapshots imaged``. Seconds of cores that others use say little; CPU
seconds and hashed bytes are told beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import snapshots_bucket
import snapshots_buffer
import snapshots_imaged
import snapshots_sealed
import snapshots_standby
import snapshots_state
from figures import Figure

PARTS = {
    "state": snapshots_state.measure,
    "bucket": snapshots_bucket.measure,
    "buffer": lambda _: snapshots_buffer.measure(),
    "sealed": snapshots_sealed.measure,
    "standby": lambda _: snapshots_standby.measure(),
    "imaged": lambda _: snapshots_imaged.measure(),
}


def measure(gigabytes: str = "1", *parts: str) -> Iterator[Figure]:
    """The learner's state; a bucket; the buffer, and a run of 1,000 snapshots; sealed pages; a run whose ranks are killed; one that is imaged."""
    if gigabytes in PARTS:
        gigabytes, parts = "1", (gigabytes, *parts)
    num_bytes = int(float(gigabytes) * 2**30)
    for part in parts or PARTS:
        yield from PARTS[part](num_bytes)
