import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from coordinator_kit import Bench


@pytest.fixture
def bench(tmp_path):
    """One run's folder, with as many coordinator lives as the test wants."""
    made = Bench(tmp_path)
    yield made
    made.close()
