"""Helpers beside these tests, and sandbox pods without a cluster, are modules."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "security")]
