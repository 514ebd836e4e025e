"""Where the time of steps goes: phases without gaps, operators, a trace that a browser reads."""

from __future__ import annotations

import json

import pytest
import torch
from debug_kit import fingerprint
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.debug.profile import PhaseProfile, profile_steps
from rollout.errors import SpecError


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_phases_and_operators_are_shares_of_the_whole(algorithm, request, tmp_path):
    folder = request.getfixturevalue(f"{algorithm}_run")
    before = fingerprint(folder)

    found = profile_steps(folder, after=1, num_steps=2, trace=tmp_path / "deep" / "trace.json")

    assert found["steps"] == [2, 3]
    assert sum(one["share"] for one in found["phases"]) == pytest.approx(1)
    named = {one["phase"] for one in found["phases"]}
    assert {"forward and loss", "backward and gradient norm", "optimizer", "digests"} <= named
    assert all(one["seconds"] >= 0 for one in found["phases"])
    assert any("mm" in one["operator"] for one in found["operators"])
    assert not [one for one in found["operators"] if one["operator"].startswith("phase: ")]
    assert fingerprint(folder) == before
    trace = json.loads((tmp_path / "deep" / "trace.json").read_text())
    assert "phase: optimizer" in {event.get("name") for event in trace["traceEvents"]}


def test_time_belongs_to_the_phase_entered_last():
    phases = PhaseProfile(torch.device("cpu"))
    for name in ("a", "b", "a", ""):
        phases.enter(name)
    phases.enter("")

    assert set(phases.seconds) == {"a", "b"}


def test_steps_end_where_the_run_ends(grpo_run, tmp_path):
    found = profile_steps(grpo_run, after=4, num_steps=9, trace=tmp_path / "t.json")

    assert found["steps"] == [5]


def test_nothing_comes_after_the_last_step(grpo_run, tmp_path):
    with pytest.raises(SpecError, match="--from 5: this run has committed steps 1 to 5"):
        profile_steps(grpo_run, after=5, num_steps=1, trace=tmp_path / "t.json")


def test_the_command_shows_both_tables_and_names_the_trace(grpo_run, tmp_path):
    trace = tmp_path / "t.json"
    words = ["debug", "profile", str(grpo_run), "--steps", "1", "--trace", str(trace)]

    done = CliRunner().invoke(app, words)

    assert done.exit_code == 0, done.output
    assert "PHASE" in done.stdout
    assert "OPERATOR" in done.stdout
    assert trace.exists()
