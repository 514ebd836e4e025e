import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "ledger"))


@pytest.fixture
def signer(tmp_path):
    from rollout.snapshots.signing import open_signer

    return open_signer(tmp_path / "config" / "snapshot.key")
