"""The end of a pod's output reaches the run's own storage, masked: after a failure, and after a kill without a word."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from pod_kit import Pods

from rollout.pods.child import run_child
from rollout.pods.output_tail import TAIL_BYTES_MAX, OutputTail
from rollout.pods.telling import FILES_MAX, SECONDS_MAX, Telling, keep_file, last_bytes
from rollout.protocol.messages import EVIDENCE_BYTES_MAX, Evidence
from rollout.report.evidence import list_evidence, read_evidence
from rollout_api.fields.credentials import mask


@pytest.fixture
def run(tmp_path):
    """Run some source as a pod's child; what the coordinator is told, and the exit code."""

    def start(source: str, **more):
        (tmp_path / "work_of_a_pod.py").write_text(source)
        path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "PYTHONPATH": path, "JUDGE_KEY": "sk-very-secret"}
        said: list[Evidence] = []
        telling = Telling(said.append, lambda text: mask(text, environment, ["PLAIN"]))
        told = more.pop("told", threading.Event())
        code = run_child("work_of_a_pod", [], environment, told, telling=telling, **more)
        return code, said, telling

    return start


@pytest.mark.process
def test_what_a_child_says_passes_on_whole_and_its_end_is_told(run, capfd):
    code, said, _ = run(
        "import os, sys\n"
        "print('x' * 300_000)\n"
        "print('ready', os.environ['JUDGE_KEY'], 'http://u:hunter2222@host/', flush=True)\n"
        "raise RuntimeError('what it died of')\n"
    )

    out, err = capfd.readouterr()
    assert code == 1
    assert out.count("x") == 300_000
    assert "what it died of" in err
    [last] = said
    assert last.moment == "failed"
    assert "RuntimeError: what it died of" in last.text
    assert "ready <JUDGE_KEY> http://<credentials>@host/" in last.text
    assert "sk-very-secret" not in last.text
    assert len(last.text.encode()) <= EVIDENCE_BYTES_MAX


@pytest.mark.process
def test_a_good_end_needs_no_words(run):
    code, said, _ = run("print('done')\n")

    assert code == 0
    assert [(one.moment, one.text) for one in said] == [("clean", "")]


@pytest.mark.process
def test_a_child_that_is_told_to_go_shows_where_it_stood_before_it_goes(run, tmp_path, monkeypatch):
    monkeypatch.setattr("rollout.pods.child.SHOW_SECONDS_MAX", 60.0)
    monkeypatch.setitem(SECONDS_MAX, "told", 60.0)
    told, ready = threading.Event(), tmp_path / "ready"

    def tell():
        while not ready.exists():
            pass
        told.set()

    threading.Thread(target=tell, daemon=True).start()

    _, said, _ = run(
        "import pathlib, time\n"
        "from rollout.common.stacks import show_on_signal\n"
        "show_on_signal()\n"
        "def stuck_here():\n"
        f"    pathlib.Path({str(ready)!r}).touch()\n"
        "    time.sleep(600)\n"
        "stuck_here()\n",
        told=told,
    )

    assert [one.moment for one in said] == ["told", "left"]
    assert "stuck_here" in said[0].text
    assert len({one.start for one in said}) == 1


@pytest.mark.process
def test_a_coordinator_that_is_away_costs_the_work_nothing():
    def fail(_):
        raise ConnectionRefusedError

    code = run_child("this", [], {**os.environ}, threading.Event(), telling=Telling(fail))

    assert code == 0


def test_the_end_of_the_output_begins_with_a_line_and_has_its_bound():
    tail = OutputTail()
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(reading, "rb", 0) as pipe:
        tail.follow(pipe, nothing)
        with os.fdopen(writing, "wb") as out:
            for number in range(40_000):
                out.write(b"line %d\n" % number)
        tail.drain()
    os.close(nothing)

    text = tail.text()
    assert text.endswith("line 39999\n")
    assert text.startswith("line ")
    assert TAIL_BYTES_MAX - 20 < len(text) <= TAIL_BYTES_MAX
    assert last_bytes("é" * 10, 5) == "éé"


def test_a_line_that_one_pipe_has_begun_is_not_cut_by_what_the_other_says():
    tail = OutputTail()
    first_read, first = os.pipe()
    other_read, other = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(first_read, "rb", 0) as one, os.fdopen(other_read, "rb", 0) as two:
        tail.follow(one, nothing)
        tail.follow(two, nothing)
        os.write(first, b"the secret is hun")
        os.write(other, b"Traceback\n" * 3)
        os.close(other)
        while len(begun := tail.text()) < 30:
            pass
        os.write(first, b"ter2222\nlast words")
        os.close(first)
        tail.drain()
    os.close(nothing)

    assert begun == "Traceback\n" * 3
    assert tail.text() == "Traceback\n" * 3 + "the secret is hunter2222\nlast words"


def test_what_one_pipe_said_is_not_lost_to_much_that_is_read_of_another_later():
    tail = OutputTail()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for words in (b"Traceback\nwhat it died of\n", b"much\n" * 100_000):
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", 0) as pipe:
            tail.follow(pipe, nothing)
            with os.fdopen(writing, "wb") as out:
                out.write(words)
            tail.drain()
    os.close(nothing)

    for size in (1000, TAIL_BYTES_MAX):
        text = tail.text(size)
        assert text.startswith("Traceback\nwhat it died of\nmuch\n")
        assert size - len("much\n") <= len(text) <= size


def test_a_coordinators_pod_keeps_its_own_in_the_runs_folder(tmp_path):
    folder = tmp_path / "evidence"
    for number in range(FILES_MAX + 3):
        keep_file(folder, "c-0", Evidence(start=f"{number:08x}", moment="running", text="a"))
    keep_file(folder, "c-0", Evidence(start="00000000", moment="failed", text="b"))
    keep_file(folder, "c-0", Evidence(start="00000001", moment="clean"))

    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(files) == FILES_MAX - 1
    assert files["c-0-00000000.txt"] == "b"
    assert "c-0-00000001.txt" not in files


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_last_words_of_a_killed_learner_are_in_the_runs_storage(tmp_path):
    pods = Pods(
        tmp_path, train={**OFFLINE, "data": {"jsonl": {"uri": str(tmp_path / "rows.jsonl")}}}
    )
    try:
        pods.start("arithmetic-coordinator-0", "coordinator")
        learner = pods.learner(0)
        pods.until(lambda status: status.step >= 1, "a step")
        pods.all.remove(learner)
        for child in psutil.Process(learner.process.pid).children():
            child.kill()
        folder = tmp_path / "arithmetic-coordinator-0" / "run"
        pods.until(lambda _: "arithmetic-learner-0-1" in names(folder), "its evidence")

        text = read_evidence(folder, "arithmetic-learner-0-1")
        assert "step committed step=1" in text
        assert (tmp_path / "arithmetic-learner-0" / "token").read_text() not in text
        learner.kill()
    finally:
        pods.close()


OFFLINE = {"algorithm": {"sft": {"batchSize": 4}}, "maxSteps": 100_000}


def names(folder: Path) -> list[str]:
    return [piece.name for piece in list_evidence(folder)]
