"""Ctrl-C saves what there is; a killed supervisor leaves nothing behind; both runs go on."""

import signal
import time

import psutil
import pytest
from local_jobs import members, start_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_ctrl_c_saves_says_how_to_resume_and_resumes_to_the_same_chain(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", steps_max=8)
    job.wait_until(lambda status: status.step >= 3)

    job.process.send_signal(signal.SIGINT)

    assert job.wait() == 130
    assert "--resume small-1" in job.said()
    assert members(job.run_dir) == []
    step = job.result()["step"]
    assert job.result()["anchor"].endswith(f"{step:06d}")
    assert start_job(tmp_path / "runs", resume="Latest").finish()["chain"] == undisturbed["chain"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small-1"]


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(tmp_path):
    job = start_job(tmp_path / "runs", overrides=["train.maxSteps=2000"])
    job.wait_until(lambda status: status.step >= 1)
    for process in members(job.run_dir):
        process.send_signal(signal.SIGSTOP)

    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    job.process.send_signal(signal.SIGINT)

    assert job.wait(60) == 130
    assert members(job.run_dir) == []


def test_a_killed_supervisor_leaves_no_process_and_the_run_goes_on(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", steps_max=8)
    job.wait_until(lambda status: status.step >= 3)
    victims = members(job.run_dir)

    job.process.kill()

    _, alive = psutil.wait_procs(victims, timeout=60)
    assert len(victims) >= 3
    assert alive == []
    resumed = start_job(tmp_path / "runs", resume="small-1").finish()
    assert resumed["chain"] == undisturbed["chain"]


@pytest.mark.slow
def test_a_longer_run_goes_on_from_a_finished_one(undisturbed, tmp_path):
    start_job(tmp_path / "runs", overrides=["train.maxSteps=5"]).finish()

    longer = start_job(tmp_path / "runs", resume="Latest").finish()

    assert longer["chain"] == undisturbed["chain"]


def test_a_run_does_not_go_on_to_a_step_that_it_has_passed(tmp_path):
    job = start_job(tmp_path / "runs", overrides=["train.maxSteps=2"])
    ended = job.finish()

    fewer = start_job(tmp_path / "runs", resume="Latest", overrides=["train.maxSteps=1"])

    assert fewer.wait() == 2
    assert "spec.train.maxSteps: 1, but this run has committed 2 steps" in fewer.said()
    again = start_job(tmp_path / "runs", resume="Latest", overrides=["train.maxSteps=2"])
    assert again.finish()["chain"] == ended["chain"]


@pytest.mark.slow
def test_a_changed_manifest_is_not_resumed(tmp_path):
    job = start_job(tmp_path / "runs", overrides=["train.maxSteps=2"])
    job.finish()

    other = start_job(tmp_path / "runs", resume="Latest", overrides=["seed=12", "train.maxSteps=4"])

    assert other.wait() == 2
    assert "changed since it began: spec.seed" in other.said()
