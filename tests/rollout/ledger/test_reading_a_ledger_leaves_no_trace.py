"""A reader sees what is committed, follows a writer that comes, and leaves nothing beside the file."""

from __future__ import annotations

import sqlite3

import pytest
from ledger_kit import IDENTITY

from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
async def at_rest(tmp_path):
    """The ledger of a run that has ended."""
    ledger = SqliteLedger(tmp_path / "ledger.db", IDENTITY)
    await ledger.add_event("one", "", {})
    await ledger.close()
    return tmp_path / "ledger.db"


async def test_reading_a_ledger_at_rest_makes_no_files(at_rest) -> None:
    before, content = names(at_rest.parent), at_rest.read_bytes()
    with LedgerReader(at_rest) as reader:
        assert [event.kind for event in reader.events()] == ["one"]
        assert reader.record(1) is None
        assert reader.state().head is None
        assert names(at_rest.parent) == before
    assert (names(at_rest.parent), at_rest.read_bytes()) == (before, content)


async def test_a_ledger_in_a_folder_that_nobody_may_write_is_read(at_rest) -> None:
    at_rest.chmod(0o444)
    at_rest.parent.chmod(0o555)
    try:
        with LedgerReader(at_rest) as reader:
            assert [event.kind for event in reader.events()] == ["one"]
    finally:
        at_rest.parent.chmod(0o755)


async def test_a_reader_follows_the_writer_that_comes_after_it(at_rest) -> None:
    with LedgerReader(at_rest) as reader:
        assert [event.kind for event in reader.events()] == ["one"]
        writer = SqliteLedger(at_rest, IDENTITY)
        await writer.add_event("two", "", {})
        assert [event.kind for event in reader.events()] == ["one", "two"]
        await writer.add_event("three", "", {})
        assert [event.kind for event in reader.events()] == ["one", "two", "three"]
        await writer.close()
        assert [event.kind for event in reader.events()] == ["one", "two", "three"]


async def test_a_reader_beside_a_writer_sees_what_is_only_in_the_log(tmp_path) -> None:
    writer = SqliteLedger(tmp_path / "ledger.db", IDENTITY)
    await writer.add_event("one", "", {})
    with LedgerReader(tmp_path / "ledger.db") as reader:
        assert [event.kind for event in reader.events()] == ["one"]
    await writer.close()


async def test_a_reader_cannot_write(at_rest) -> None:
    with LedgerReader(at_rest) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._tx.execute("DELETE FROM events")
