"""A folder that is no run, an old ledger and a damaged one are named; the others are counted all the same."""

from __future__ import annotations

import json
import sqlite3

import pytest
from cost_kit import HOUR, table

from rollout.costs.billing import bill, total_of
from rollout.costs.reading import UNNOTED, find_folders, read_usage, read_usages
from rollout.costs.telling import PRICES_VARIABLE, describe_folder
from rollout.errors import LedgerError
from rollout.ledger.records import LifeNote, Limits, RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger

BEGIN = 1_767_225_600.0


async def make_run(home, name, hours=1, config=None):
    """A run whose learner lived so long on a machine."""
    folder, now = home / name, [BEGIN]
    folder.mkdir()
    whole = {"spec": {}, "run": {"uid": name}} if config is None else config
    (folder / "worker.json").write_text(json.dumps(whole))
    identity = RunIdentity(uid=name, name=name, spec_digest="blake3:" + "0" * 64)
    ledger = SqliteLedger(folder / "ledger.db", identity, Limits(), lambda: now[0])
    for hour in range(hours + 1):
        now[0] = BEGIN + 3600.0 * hour
        await ledger.note_lives(
            [LifeNote(worker="learner", incarnation=1, role="learner", place={"machine": "desk"})]
        )
    await ledger.close()
    return folder


def change(folder, sql):
    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute(sql)


POSTGRES = {"storage": {"ledger": {"postgres": {"secretRef": {"name": "db", "key": "dsn"}}}}}


async def test_what_cannot_be_read_is_named_and_the_others_are_counted(tmp_path, monkeypatch):
    monkeypatch.delenv("ROLLOUT_LEDGER_DSN", raising=False)
    await make_run(tmp_path, "good")
    change(await make_run(tmp_path, "late"), f"UPDATE lives SET heard_ms = {10**18}")
    change(await make_run(tmp_path, "old"), "PRAGMA user_version = 5")
    await make_run(tmp_path, "none", config={"spec": 1})
    await make_run(tmp_path, "far", config={"spec": POSTGRES, "run": {"uid": "far"}})
    await make_run(tmp_path, "odd", config={"spec": {"storage": 1}, "run": {"uid": "odd"}})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "worker.json").write_bytes(b"\xff{")

    found = {one.run: one for one in read_usages(find_folders(tmp_path))}

    whole = total_of("", bill(list(found.values()), table()))
    assert whole.cost is not None
    assert whole.cost * 100 == 35
    assert {name for name, one in found.items() if one.stays is None} == found.keys() - {"good"}
    assert found["old"].why == UNNOTED
    assert "is no time of a process" in found["late"].why
    assert "names no run" in found["none"].why
    assert "storage.ledger.postgres" in found["far"].why


async def test_runs_that_share_a_machine_are_told_their_part(tmp_path):
    first = await make_run(tmp_path, "first", hours=1)
    await make_run(tmp_path, "second", hours=2)
    prices = tmp_path / "prices.yaml"
    prices.write_text('currency: EUR\nprices:\n- {machine: desk, from: 2026-01-01, perHour: "2"}\n')

    assert (describe_folder(first, {PRICES_VARIABLE: str(prices)}) or "").startswith("1.00 EUR")
    assert describe_folder(first, {}) is None
    prices.write_text("currency: EURO")
    assert "unknown: " in (describe_folder(first, {PRICES_VARIABLE: str(prices)}) or "")


async def test_a_life_is_read_to_the_millisecond(tmp_path):
    usage = read_usage(await make_run(tmp_path, "good", hours=3))
    [one] = usage.stays or ()
    assert one.span == (int(BEGIN) * 1000, int(BEGIN) * 1000 + 3 * HOUR)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LedgerError, match="is not the folder of a run"):
        read_usage(tmp_path / "gone")
