"""``rollout get sweep`` says in a line how a sweep stands, and which of its runs is the best."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import pytest
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main
from rollout.cluster.kinds import SWEEP, parse_reference
from rollout.cluster.objects import columns, row

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
FOUND = {
    "kind": "RolloutSweep",
    "metadata": {"name": "rates", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "total": 6,
        "counts": {"waiting": 1, "running": 2, "succeeded": 1, "stopped": 2},
        "best": {"name": "rates-003", "value": "0.75"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Running", "message": "m"}],
    },
}


@pytest.mark.parametrize("word", ["sweep/rates", "rsweep/rates", "RolloutSweep/rates"])
def test_a_sweep_is_named_like_the_other_kinds(word):
    assert parse_reference(word).kind is SWEEP


def test_its_line_has_its_runs_and_the_best():
    told = dict(zip(columns(SWEEP), row(SWEEP, FOUND, NOW), strict=True))
    assert told == {
        "NAME": "rates",
        "READY": "True",
        "REASON": "Running",
        "RUNS": 6,
        "RUNNING": 2,
        "SUCCEEDED": 1,
        "STOPPED": 2,
        "BEST": "rates-003",
        "VALUE": 0.75,
        "AGE": "60m",
    }


def test_a_sweep_of_which_nothing_is_said_yet_is_a_line_too():
    bare = {"metadata": FOUND["metadata"]}
    assert row(SWEEP, bare, NOW)[:6] == ["rates", None, None, None, None, None]


def test_the_command_asks_for_sweeps(monkeypatch, capsys, tmp_path):
    def answer(method, path, _query):
        if method == "GET" and path.endswith("/rolloutsweeps"):
            return said(200, {"items": [FOUND], "metadata": {}})
        return refusal(404, "not found")

    with api_server(tmp_path, answer) as (config, _):
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(sys, "argv", ["rollout", "get", "sweep", "--output", "json"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    assert "rates-003" in json.dumps(json.loads(capsys.readouterr().out))
