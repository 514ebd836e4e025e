"""Sandbox pods of a run, made by its broker from this machine."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
for _place in ("rollout", "rollout/actor", "rollout/environments", "rollout/tools", "security"):
    sys.path.append(str(Path(__file__).parents[2] / "tests" / _place))
