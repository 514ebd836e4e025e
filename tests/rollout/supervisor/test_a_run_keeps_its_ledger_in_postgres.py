"""With ``storage.ledger.postgres`` a run is the same run, and its coordinator keeps nothing on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_jobs import MANIFEST, start_job

sys.path.append(str(Path(__file__).parents[1] / "ledger"))

from postgres_server import make_server, why_not
from wire import COMMITTED, Proxy

from rollout.ledger.opening import DSN_VARIABLE

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

IN_POSTGRES = (
    f"{MANIFEST}  storage: {{ledger: {{postgres: {{secretRef: {{name: ledger-dsn}}}}}}}}\n"
)
SHOW = "from rollout.cli.main import main; main()"
PASSWORD = "very-much-a-secret"


@pytest.fixture
def server(monkeypatch):
    made = make_server()
    dsn = made.dsn.replace("rollout@", f"rollout:{PASSWORD}@")
    monkeypatch.setenv(DSN_VARIABLE, dsn)
    yield made
    made.close()


def files_with(folder: Path, word: str) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and word.encode() in path.read_bytes()
    ]


def test_the_run_is_the_same_through_deaths_of_its_coordinator_and_its_server(
    server, undisturbed, tmp_path
):
    job = start_job(tmp_path / "runs", manifest=IN_POSTGRES, steps_max=8)
    job.wait_until(lambda status: status.step >= 2)
    job.kill("coordinator")
    job.wait_until(lambda status: status.step >= 5)
    server.kill()
    server.start()
    job.wait_until(lambda status: status.step >= 7)
    assert DSN_VARIABLE.encode() not in environment_of(job, "actor")
    job.limit_steps()

    result = job.finish()

    assert result["chain"] == undisturbed["chain"]
    assert result["dispositions"] == undisturbed["dispositions"]
    assert not (job.run_dir / "ledger.db").exists()
    assert files_with(tmp_path, PASSWORD) == []
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, "runs", "show", str(job.run_dir)],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Succeeded" in shown.stdout


@pytest.mark.slow
def test_cut_connections_and_lost_acknowledgements_change_nothing(
    server, undisturbed, monkeypatch, tmp_path
):
    wire = Proxy(server.port)
    monkeypatch.setenv(DSN_VARIABLE, server.at(wire.port))
    job = start_job(tmp_path / "runs", manifest=IN_POSTGRES, slow_rewards=0.1)
    for step in range(1, 10, 2):
        job.wait_until(lambda status, step=step: status.step >= step)
        wire.arm(COMMITTED)
        assert wire.fired.wait(120)
        job.wait_until(lambda status, step=step: status.step >= step + 1)
        wire.cut()
    result = job.finish()
    wire.close()

    assert result["chain"] == undisturbed["chain"]
    assert result["dispositions"] == undisturbed["dispositions"]
    assert "tried again after" in job.log("coordinator")


def environment_of(job, role: str) -> bytes:
    """What a process of the run was started with; an empty variable is none."""
    import psutil

    for child in psutil.Process(job.process.pid).children(recursive=True):
        if f"rollout.entrypoints.{role}" in child.cmdline():
            found = Path(f"/proc/{child.pid}/environ").read_bytes()
            return found.replace(f"{DSN_VARIABLE}=\0".encode(), b"")
    raise AssertionError(f"no {role} is running")


def test_a_run_without_its_connection_string_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv(DSN_VARIABLE, raising=False)
    job = start_job(tmp_path / "runs", manifest=IN_POSTGRES)
    assert job.wait() == 2
    assert f"storage.ledger.postgres: {DSN_VARIABLE} is not set" in job.said()
    assert os.environ.get(DSN_VARIABLE) is None
