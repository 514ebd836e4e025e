import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    *(str(HERE.parent / "rollout" / name) for name in ("inference", "service")),
]
