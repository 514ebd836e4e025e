"""The allocator setting: accepted here, and a later step faults in next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from rollout.learner.forward.memory import keep_freed_memory
assert keep_freed_memory() and keep_freed_memory()
def step():
    blocks = [torch.ones(1 << 20) for _ in range(40)]  # 4 MiB each
    del blocks
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc only")
def test_a_later_step_reuses_the_pages_of_an_earlier_one():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert int(done.stdout) < 10_000  # 40 blocks are 40,960 pages
