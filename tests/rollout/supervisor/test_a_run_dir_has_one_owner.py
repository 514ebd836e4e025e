import os
import subprocess
import sys
import time

import pytest

from rollout.errors import SpecError
from rollout.runs.run_dir import (
    RunLock,
    create_run_dir,
    find_run,
    find_run_dir,
    find_run_dirs,
    prepare_run_dir,
    runs_home,
)


def test_runs_of_one_name_are_numbered(tmp_path):
    names = [create_run_dir(tmp_path, "adder").name for _ in range(3)]

    assert names == ["adder-1", "adder-2", "adder-3"]


def test_names_that_begin_alike_are_kept_apart(tmp_path):
    create_run_dir(tmp_path, "adder")
    create_run_dir(tmp_path, "adder-big")

    assert [run.name for run in find_run_dirs(tmp_path, "adder")] == ["adder-1"]


def test_numbers_go_on_after_ten(tmp_path):
    for number in (2, 10, 9):
        (tmp_path / f"adder-{number}").mkdir()

    assert create_run_dir(tmp_path, "adder").name == "adder-11"


def test_the_token_is_secret_and_survives(tmp_path):
    run = create_run_dir(tmp_path, "adder")
    token = run.token.read_text()

    prepare_run_dir(run.path)

    assert run.token.stat().st_mode & 0o777 == 0o600
    assert len(token) == 64
    assert run.token.read_text() == token


def test_latest_is_the_newest_that_holds_a_run(tmp_path):
    first, second = create_run_dir(tmp_path, "adder"), create_run_dir(tmp_path, "adder")
    create_run_dir(tmp_path, "adder")
    for run in (first, second):
        run.worker_config.write_text("{}")

    assert find_run_dir(tmp_path, "adder", "Latest").name == "adder-2"
    assert find_run_dir(tmp_path, "adder", "adder-1").name == "adder-1"


def test_an_unknown_run_is_refused_with_what_there_is(tmp_path):
    create_run_dir(tmp_path, "adder").worker_config.write_text("{}")

    with pytest.raises(SpecError, match="there: adder-1"):
        find_run_dir(tmp_path, "adder", "adder-7")


def test_a_run_is_found_by_folder_by_directory_name_and_by_run_name(tmp_path):
    run = create_run_dir(tmp_path, "adder")
    run.worker_config.write_text("{}")

    found = {find_run(given, tmp_path) for given in (str(run.path), "adder-1", "adder")}

    assert found == {run.path}


def test_a_missing_run_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no run 'adder'"):
        find_run("adder", tmp_path)


def test_home_is_the_environments_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert runs_home({}) == tmp_path / "runs"
    assert runs_home({"ROLLOUT_HOME": "/data/runs"}).as_posix() == "/data/runs"


def test_a_second_supervisor_is_refused_and_told_who_has_it(tmp_path):
    run = create_run_dir(tmp_path, "adder")
    lock = RunLock(run)
    lock.acquire()

    with pytest.raises(SpecError, match=f"process {os.getpid()}"):
        RunLock(run).acquire()
    lock.release()
    RunLock(run).acquire()


@pytest.mark.process
def test_a_leftover_process_is_waited_for(tmp_path, monkeypatch):
    """It ends once the next owner has begun to wait."""
    run = create_run_dir(tmp_path, "adder")
    waits, wait = [], time.sleep
    leave_a_child = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from rollout.runs.run_dir import RunDir, RunLock\n"
        "lock = RunLock(RunDir(path=Path(sys.argv[1]))); lock.acquire()\n"
        "subprocess.Popen(['cat'], pass_fds=(lock.fileno,))\n"
    )
    command = [sys.executable, "-c", leave_a_child, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as owner:
        assert owner.wait() == 0

        def end_it(seconds):
            owner.stdin.close()
            waits.append(seconds)
            wait(seconds)

        monkeypatch.setattr(time, "sleep", end_it)
        lock = RunLock(run)
        lock.acquire(leftovers_seconds_max=60)

    assert waits
    lock.release()
