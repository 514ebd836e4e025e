import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.extend(
    [
        str(HERE),
        str(HERE.parent / "coordinator"),
        str(HERE.parent / "ledger"),
        str(HERE.parent / "snapshots"),
    ]
)
