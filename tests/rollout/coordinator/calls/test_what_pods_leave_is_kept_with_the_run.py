"""Evidence that a coordinator is told lies in the store and the ledger, bounded over all of its lives, and is shown."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.coordinator.rules.evidence import KEPT_OF_WORKER_MAX
from rollout.errors import CoordinatorError, RolloutError, SpecError, StoreError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.report.evidence import list_evidence, read_evidence


@pytest.fixture
def run(bench):
    """A run whose folder is read as a user would."""
    config = {"run": {"uid": "uid-1", "name": "arithmetic"}, "spec": {}}
    (bench.folder / "worker.json").write_text(json.dumps(config))
    return bench


def tell(
    client, moment, text="", start="0" * 16, worker="run-actors-0", route=routes.ACTOR_EVIDENCE
):
    ask = m.Evidence(start=start, moment=moment, text=text)
    return client.as_worker(worker).call(route, ask)


def texts(run):
    return {
        piece.name: (piece.moment, read_evidence(run.folder, piece.name))
        for piece in list_evidence(run.folder)
    }


def test_a_bad_end_is_read_when_the_coordinator_is_gone(run):
    client = run.start()
    tell(client, "failed", "Traceback\n\x1b[31mRuntimeError: é")
    tell(client, "told", "stacks", worker="run-learner-0", route=routes.LEARNER_EVIDENCE)
    run.stop()

    assert texts(run) == {
        "run-actors-0-1": ("failed", "Traceback\n\x1b[31mRuntimeError: é"),
        "run-learner-0-2": ("told", "stacks"),
    }
    shown = CliRunner().invoke(app, ["debug", "evidence", str(run.folder)])
    assert "run-learner-0-2" in shown.stdout
    said = CliRunner().invoke(app, ["debug", "evidence", str(run.folder), "run-actors-0-1"])
    assert "RuntimeError: é" in said.stdout
    assert "\x1b" not in said.stdout


def test_the_bound_holds_over_all_lives_of_the_coordinator(run):
    for life in range(KEPT_OF_WORKER_MAX + 2):
        tell(run.start(), "failed", f"life {life}", start=f"{life:016x}")
    run.stop()

    assert [text for _, text in texts(run).values()] == [
        f"life {life}" for life in range(KEPT_OF_WORKER_MAX)
    ]


def test_a_body_that_is_too_large_or_of_nobody_is_refused(run):
    client = run.start()

    with pytest.raises(CoordinatorError, match="bytes"):
        tell(client, "failed", "x" * 40_000)
    with pytest.raises(CoordinatorError, match="expected evidence of a worker"):
        tell(client, "failed", "x", worker="../../x")
    with pytest.raises(RolloutError):
        tell(client, "never", "x")
    assert list_evidence(run.folder) == []


def test_a_store_that_takes_nothing_does_not_end_the_run(run, monkeypatch):
    client = run.start()

    def refuse(data):
        raise StoreError("no room")

    monkeypatch.setattr(run.coordinator.run.store, "put", refuse)
    tell(client, "failed", "x")

    assert run.coordinator.run.state.outcome is None
    assert run.coordinator.run.evidence.num_dropped == 1
    assert list_evidence(run.folder) == []


def test_files_of_the_folder_are_shown_beside_it_and_other_names_are_told(run):
    tell(run.start(), "failed", "of the ledger")
    run.stop()
    (run.folder / "evidence").mkdir()
    (run.folder / "evidence" / "01-learner.txt").write_text("stacks")

    assert {name: moment for name, (moment, _) in texts(run).items()} == {
        "01-learner": "stuck",
        "run-actors-0-1": "failed",
    }
    with pytest.raises(SpecError, match=r"there is .*01-learner"):
        read_evidence(run.folder, "nothing")
