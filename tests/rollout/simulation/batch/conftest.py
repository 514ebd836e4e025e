import sys
from pathlib import Path

HERE = Path(__file__).parent
ABOVE = HERE.parents[1]
sys.path.extend([str(HERE), str(HERE.parent), str(ABOVE / "coordinator"), str(ABOVE / "ledger")])
