import sys
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
sys.path.extend([str(HERE), str(HERE.parent), str(TESTS / "rollout" / "simulation")])
