import logging
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from table import read_all


@pytest.fixture(scope="module")
def readings(tmp_path_factory):
    """Every field's reader, found once; what is built goes into a cache of its own."""
    folder = tmp_path_factory.mktemp("fields")
    logging.disable(logging.CRITICAL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROLLOUT_CACHE", str(folder / "cache"))
            yield read_all(folder)
    finally:
        logging.disable(logging.NOTSET)
