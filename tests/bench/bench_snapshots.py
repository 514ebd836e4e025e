"""Snapshots beside the raw calls they are made of: the same bytes, file caches dropped, in turns.

``run.py snapshots [GIGABYTES]`` (``make bench TARGET="snapshots 0.25"``): 1 by default, of which a third are weights and the
rest optimizer state, in folders under ``BENCH_DIR`` (default: the temporary folder). Seconds of cores that others use say
little; CPU seconds and hashed bytes are told beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import snapshots_bucket
import snapshots_buffer
import snapshots_state
from figures import Figure


def measure(gigabytes: str = "1") -> Iterator[Figure]:
    """Saving, naming and restoring the learner's state; a bucket; the buffer, and a run of 1,000 snapshots."""
    num_bytes = int(float(gigabytes) * 2**30)
    yield from snapshots_state.measure(num_bytes)
    yield from snapshots_bucket.measure(num_bytes)
    yield from snapshots_buffer.measure()
