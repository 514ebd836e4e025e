"""`rollout runs list` names each run that cannot be read, with the field where there is one, and lists the others all the same."""

from __future__ import annotations

import json
import sys

import pytest

from rollout.cli.main import main
from rollout.errors import LedgerError
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.report.evidence import list_evidence
from rollout.report.gather import gather, is_offline, open_ledger

SPEC = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {"algorithm": {"grpo": {"promptsPerStep": 1, "groupSize": 2}}},
}
POSTGRES = {"ledger": {"postgres": {"secretRef": {"name": "db", "key": "dsn"}}}}


async def make_run(home, name, config):
    folder = home / name
    folder.mkdir()
    (folder / "worker.json").write_text(json.dumps(config))
    identity = RunIdentity(uid=name, name=name, spec_digest="blake3:" + "0" * 64)
    await SqliteLedger(folder / "ledger.db", identity, Limits()).close()
    return folder


def config(name, **spec):
    return {"run": {"uid": name}, "spec": SPEC | spec, "resolved": {"modelDigest": "blake3:0"}}


async def test_each_is_named_and_the_others_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ROLLOUT_LEDGER_DSN", raising=False)
    broken = {
        "odd-storage": config("odd-storage", storage={"ledger": {"retention": 7}}),
        "no-storage": config("no-storage", storage=1),
        "far": config("far", storage=POSTGRES),
        "none": {"spec": 1},
        "list": [1, 2],
    }
    for name, found in {"good": config("good"), **broken}.items():
        await make_run(tmp_path, name, found)
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["rollout", "runs", "list", "--output", "json"])

    with pytest.raises(SystemExit) as ended:
        main()
    listed = {one["run"]: one["outcome"] for one in json.loads(capsys.readouterr().out)}

    assert not ended.value.code
    assert listed["good"] == "Running"
    assert "spec.storage.ledger.retention" in listed["odd-storage"]
    assert "spec.storage" in listed["no-storage"]
    assert "ROLLOUT_LEDGER_DSN" in listed["far"]
    assert "names no run and spec" in listed["none"]
    assert "names no run and spec" in listed["list"]


@pytest.mark.parametrize("read", [open_ledger, gather, list_evidence], ids=lambda one: one.__name__)
async def test_whatever_reads_a_run_names_the_field_of_its_spec(tmp_path, read):
    folder = await make_run(tmp_path, "odd", config("odd", storage={"uri": 7}))

    with pytest.raises(LedgerError, match=r"odd/worker\.json: spec\.storage\.uri"):
        read(folder)


async def test_an_algorithm_that_nobody_knows_is_named(tmp_path):
    folder = await make_run(tmp_path, "odd", config("odd", train={"algorithm": {"guessing": {}}}))

    with pytest.raises(LedgerError, match=r"spec\.train\.algorithm"):
        is_offline(folder)
