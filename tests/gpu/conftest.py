"""Tests of what only a CUDA device does; without one nothing here is collected. ``make gpu`` runs them.

They need torch, transformers, pytest and what a run imports, and no cluster, network or vLLM.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
if not list(Path("/dev").glob("nvidia[0-9]*")):
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path += [str(TESTS / "bench")]
    sys.path += [str(TESTS / "rollout" / folder) for folder in ("learner", "weights")]


@pytest.fixture
def exact():
    """Deterministic kernels only, as a run in Exact has them."""
    import torch

    from rollout.learner.model.numerics import apply_numerics

    apply_numerics(threads=4, exact=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
