"""Helpers beside these tests, and those of the operator's, are modules."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rollout_operator")]
