"""In Exact, a run in which processes were killed ends with the chain of an undisturbed one."""

import random
import signal
import time

import pytest
from local_jobs import start_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

ROLES = ("coordinator", "actor-0", "learner")
STEPS = 12


def disturb(job, seed: int, kills: int) -> list[str]:
    """Kill a random process at a random point, so many times; returns what was done."""
    chance = random.Random(seed)
    points = sorted(chance.randrange(STEPS) for _ in range(kills))
    victims = [*ROLES, *chance.choices(ROLES, k=kills)][:kills]
    chance.shuffle(victims)
    done = []
    for point, victim in zip(points, victims, strict=True):
        job.wait_until(lambda status, point=point: status.step >= point)
        time.sleep(chance.uniform(0, 0.1))
        job.kill(victim)
        done.append(f"{victim} after step {point}")
    return done


def check_same(result: dict, undisturbed: dict) -> None:
    assert result["step"] == STEPS
    assert result["chain"] == undisturbed["chain"]
    assert result["dispositions"] == undisturbed["dispositions"]
    assert accuracies(result) == accuracies(undisturbed)


def accuracies(result: dict) -> list:
    return sorted(
        (one["name"], one["step"], one["metrics"]["accuracy"]["value"])
        for one in result["evaluations"]
    )


def test_two_undisturbed_runs_are_equal(undisturbed, tmp_path):
    check_same(start_job(tmp_path / "runs").finish(), undisturbed)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))]
)
def test_killed_processes_change_nothing(seed, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs")
    done = disturb(job, seed, kills=3)

    result = job.finish()

    assert "starting it again" in job.said(), done
    check_same(result, undisturbed)


def test_every_sample_has_exactly_one_disposition(undisturbed):
    counts = undisturbed["dispositions"]

    assert counts["consumed"] == STEPS * 4 * 4
    assert sum(counts.values()) == counts["consumed"]


@pytest.mark.slow
def test_two_actors_come_to_the_chain_of_one(undisturbed, tmp_path):
    result = start_job(tmp_path / "runs", overrides=["actors.replicas=2"]).finish()

    check_same(result, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_hangs_is_started_again(role, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", overrides=["limits.noProgressSeconds=5"])
    job.wait_until(lambda status: status.step >= 4)

    job.signal(role, signal.SIGSTOP)

    check_same(job.finish(), undisturbed)
    assert f"{role} has not moved for too long" in job.said()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_was_asked_to_leave_is_started_again(role, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs")
    job.wait_until(lambda status: status.step >= 4)

    job.signal(role, signal.SIGTERM)

    check_same(job.finish(), undisturbed)
