"""``actors.autoscale`` on one machine: processes come and go while the run goes on, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_jobs import MANIFEST, start_job
from local_status import make_status

from rollout.common.child_processes import ProcessSpec
from rollout.protocol.status import RunOutcome
from rollout.supervisor.display.progress import SilentDisplay
from rollout.supervisor.supervisor import Supervisor
from rollout.supervisor.watch import Bounds

pytestmark = pytest.mark.process


def scaled(actors: str, algorithm: str = "promptsPerStep: 4, groupSize: 4") -> str:
    text = MANIFEST.replace("promptsPerStep: 4, groupSize: 4", algorithm)
    return text.replace("  train:\n", f"  actors: {actors}\n  train:\n", 1)


def alive(status):
    return {w.worker for w in status.workers if w.role == "actor" and w.alive and not w.outcome}


def test_actors_join_while_the_learner_waits_for_them(tmp_path):
    manifest = scaled("{replicas: 1, autoscale: {min: 1, max: 3}}")
    job = start_job(tmp_path / "runs", manifest=manifest, slow_rewards=0.8)

    job.wait_until(lambda status: len(alive(status)) == 3)
    job.slow_rewards(0.0)

    result = job.finish()
    assert result["step"] == 12
    assert "actors wanted=3 before=1" in job.logs()


class SaidStatuses:
    """The coordinator's part: what it says next, and the run's end once all of it was heard."""

    silent_seconds = 0.0

    def __init__(self, *wanted: int) -> None:
        self._wanted = list(wanted)
        self.latest = make_status(actors_wanted=wanted[0])

    def next(self) -> None:
        """Say the next number; after the last, that the run is over."""
        self._wanted.pop(0)
        over = RunOutcome(kind="Succeeded", reason="Completed", message="")
        self.latest = (
            make_status(actors_wanted=self._wanted[0])
            if self._wanted
            else make_status(outcome=over)
        )

    def start(self) -> None: ...
    def close(self) -> None: ...
    def poll_now(self) -> None: ...


class Seen(SilentDisplay):
    """Goes on to the next number once as many processes run as are wanted."""

    def __init__(self, poller: SaidStatuses, folder: Path) -> None:
        self._poller, self._folder = poller, folder
        self.notes: list[str] = []

    def show(self, status) -> None:
        if len(list(self._folder.glob("runs-*"))) == status.actors_wanted:
            self._poller.next()
        if status.outcome is not None:
            (self._folder / "over").touch()

    def note(self, text: str) -> None:
        self.notes.append(text)


STAND_IN = """
import pathlib, signal, sys, threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
mark = pathlib.Path(__file__).with_name(f"runs-{sys.argv[1]}")
mark.touch()
while not told.wait(0.05) and not mark.with_name("over").exists():
    pass
mark.unlink()
mark.with_name(f"left-{sys.argv[1]}").touch()
"""


def test_processes_come_and_go_with_the_number_and_one_that_goes_has_no_successor(
    tmp_path, monkeypatch
):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def plan_actor(index: int) -> ProcessSpec:
        words = {"module": "stand_in", "arguments": (str(index),)}
        return ProcessSpec(
            name=f"actor-{index}", role="actor", log=tmp_path / f"log-{index}", **words
        )

    poller = SaidStatuses(1, 3, 1)
    display = Seen(poller, tmp_path)
    with (tmp_path / "lock").open("w") as lock:
        supervisor = Supervisor(
            [plan_actor(0)],
            poller=poller,
            display=display,
            bounds=Bounds(pre_running_seconds=300, active_seconds=300, no_progress_seconds=300),
            lock_fileno=lock.fileno(),
            plan_actor=plan_actor,
        )
        supervisor.start()
        ended = supervisor.run()

    assert (ended.exit_code, display.notes) == (0, [])
    assert {path.name for path in tmp_path.glob("left-*")} >= {"left-1", "left-2"}


@pytest.mark.slow
def test_actors_that_wait_for_the_learner_go_in_peace(tmp_path):
    """Quick: the number that is asked for, coordinator/test_the_number_of_actors_follows_the_learner.py; that processes follow it, above."""
    busy = "promptsPerStep: 4, groupSize: 4, epochs: 12, miniBatches: 2"
    job = start_job(
        tmp_path / "runs", manifest=scaled("{replicas: 3, autoscale: {min: 1, max: 3}}", busy)
    )

    status = job.wait_until(lambda status: status.actors_wanted == 1 and len(alive(status)) == 1)

    gone = [w for w in status.workers if w.role == "actor" and w.outcome]
    assert {w.outcome for w in gone} == {"succeeded"}
    assert job.finish()["step"] == 12
    assert "starting it again" not in job.said()
