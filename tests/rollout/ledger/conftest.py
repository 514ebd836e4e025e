"""Every ledger implementation goes through the same tests: add its opener to ``OPENERS``."""

import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import msgspec
from ledger_kit import IDENTITY, Clock, Open, RealClock
from postgres_server import PostgresServer, close_shared, make_server, shared_server

from rollout.ledger.contract import Ledger
from rollout.ledger.records import Limits
from rollout.ledger.sql.reader import Reader
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader


def open_sqlite(folder: Path, clock: Clock, limits: Limits) -> SqliteLedger:
    return SqliteLedger(folder / "ledger.db", IDENTITY, limits, clock)


_clocks = itertools.count(1)
_names: dict[Path, str] = {}


def open_postgres(folder: Path, clock: Clock, limits: Limits) -> Ledger:
    """A schema for each folder; the server's clock is a row that the test's clock sets."""
    from rollout.ledger.postgres.executor import ExecutorSettings
    from rollout.ledger.postgres.ledger import PostgresLedger

    server, number = shared_server(), next(_clocks)
    uid = _names.setdefault(folder, f"uid-{len(_names)}")
    identity = msgspec.structs.replace(IDENTITY, uid=uid)
    if isinstance(clock, RealClock):
        return PostgresLedger(server.dsn, identity, limits)
    server.query("CREATE TABLE IF NOT EXISTS public.clocks (number int PRIMARY KEY, now float8)")
    server.query("INSERT INTO public.clocks VALUES (%s, %s)", (number, clock.now))
    clock.followers.append(
        lambda now: server.query(
            "UPDATE public.clocks SET now = %s WHERE number = %s", (now, number)
        )
    )
    return PostgresLedger(
        server.dsn,
        identity,
        limits,
        ExecutorSettings(clock=f"(SELECT now FROM public.clocks WHERE number = {number})"),
    )


def read_sqlite(folder: Path) -> Reader:
    return LedgerReader(folder / "ledger.db")


def read_postgres(folder: Path) -> Reader:
    from rollout.ledger.postgres.reader import PostgresReader

    return PostgresReader(shared_server().dsn, _names.get(folder, "never-opened"))


READERS = {"postgres": read_postgres, "sqlite": read_sqlite}
OPENERS = {"postgres": open_postgres, "sqlite": open_sqlite}


@pytest.fixture(params=sorted(OPENERS))
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        shared_server()
    return request.param


@pytest.fixture
def open_ledger(store: str) -> Open:
    return OPENERS[store]


@pytest.fixture
def read_ledger(store: str) -> Callable[[Path], Reader]:
    """Opens a reader of the ledger that ``open_ledger`` has opened for a folder."""
    return READERS[store]


@pytest.fixture(scope="session", autouse=True)
def _servers_end() -> Iterator[None]:
    yield
    close_shared()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, to be wounded."""
    made = make_server()
    yield made
    made.close()


@pytest.fixture
def damage(store: str, tmp_path: Path) -> Callable[[str], None]:
    """Runs a statement on the ledger that ``open_ledger`` has opened in ``tmp_path``, as nobody should."""

    def run(sql: str) -> None:
        if store == "sqlite":
            with sqlite3.connect(tmp_path / "ledger.db") as connection:
                connection.execute(sql)
            return
        with read_postgres(tmp_path) as reader:
            schema = reader._address.schema
        shared_server().query(f'SET search_path TO "{schema}"; {sql}; RESET search_path')

    return run
