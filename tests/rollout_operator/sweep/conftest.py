"""What tests of sweeps share: their world, and the model of an API server beside it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.extend([str(HERE), str(HERE.parent / "simulation")])
