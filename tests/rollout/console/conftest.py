import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "ledger"))

from console_kit import Console, open_console


@pytest.fixture
async def console(tmp_path):
    """A console of an empty folder, entered by its link."""
    async with open_console(tmp_path) as one:
        await one.enter()
        yield one


__all__ = ["Console"]
