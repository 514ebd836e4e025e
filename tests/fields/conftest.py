import logging
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from table import read_all


@pytest.fixture(scope="module")
def readings(tmp_path_factory):
    """Every field's reader, found once; what is built goes into a cache of its own."""
    folder = tmp_path_factory.mktemp("fields")
    before = os.environ.get("ROLLOUT_CACHE")
    os.environ["ROLLOUT_CACHE"] = str(folder / "cache")
    logging.disable(logging.CRITICAL)
    try:
        yield read_all(folder)
    finally:
        logging.disable(logging.NOTSET)
        os.environ.pop("ROLLOUT_CACHE")
        if before is not None:
            os.environ["ROLLOUT_CACHE"] = before
