"""Every ledger implementation goes through the same tests: add its opener to ``OPENERS``."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from ledger_kit import IDENTITY, Clock, Open

from rollout.ledger.records import Limits
from rollout.ledger.sqlite.ledger import SqliteLedger


def open_sqlite(folder: Path, clock: Clock, limits: Limits) -> SqliteLedger:
    return SqliteLedger(folder / "ledger.db", IDENTITY, limits, clock)


OPENERS = {"sqlite": open_sqlite}


@pytest.fixture(params=sorted(OPENERS))
def open_ledger(request: pytest.FixtureRequest) -> Open:
    return OPENERS[request.param]
