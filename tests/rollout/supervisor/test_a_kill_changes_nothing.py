"""In Exact, a run whose processes were killed or slept past their leases ends with the chain of an undisturbed one."""

from __future__ import annotations

import random
import signal
import time

import pytest
from local_jobs import start_job
from ruins import check_same

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

ROLES = ("coordinator", "actor-0", "learner")
STEPS = 12
LEASE_SECONDS = 4.0
ROOM = 4
"""Steps that a run may take before what is to happen after one of them has happened."""


def plan_schedule(seed: int) -> list[tuple[int, str, str, float]]:
    """(step, role, kill or freeze, seconds) of every role once; one seed in three only kills, one only freezes."""
    chance = random.Random(seed)
    points = sorted(chance.randrange(STEPS - 1) for _ in ROLES)
    kinds = (["kill"], ["freeze"], ["kill", "freeze"])[seed % 3]
    roles = chance.sample(ROLES, len(ROLES))
    return [
        (point, role, chance.choice(kinds), LEASE_SECONDS * chance.uniform(1.1, 1.6))
        for point, role in zip(points, roles, strict=True)
    ]


def disturb(job, seed: int) -> list[tuple[int, str, str, float]]:
    """Do what a seed stands for, to a run that cannot end before; returns it."""
    chance, schedule = random.Random(seed), plan_schedule(seed)
    for point, role, kind, seconds in schedule:
        job.limit_steps(min(point + ROOM, STEPS - 1))
        job.wait_until(lambda status, point=point: status.step >= point)
        time.sleep(chance.uniform(0, 0.1))
        if kind == "kill":
            job.kill(role)
        else:
            job.freeze(role, seconds)
    job.limit_steps()
    return schedule


def test_two_undisturbed_runs_are_equal(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs")
    check_same(job, job.finish(), undisturbed)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))]
)
def test_killed_and_frozen_processes_change_nothing(seed, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", lease_seconds=LEASE_SECONDS, steps_max=0)
    done = disturb(job, seed)

    result = job.finish()

    killed = any(kind == "kill" for _, _, kind, _ in done)
    assert killed == ("starting it again" in job.said()), done
    check_same(job, result, undisturbed)


def test_the_schedules_meet_every_role_in_both_ways():
    done = {(role, kind) for seed in range(20) for _, role, kind, _ in plan_schedule(seed)}
    assert done == {(role, kind) for role in ROLES for kind in ("kill", "freeze")}
    assert {kind for seed in (0, 1) for _, _, kind, _ in plan_schedule(seed)} == {"kill", "freeze"}


def test_every_sample_has_exactly_one_disposition(undisturbed):
    counts = undisturbed["dispositions"]

    assert counts["consumed"] == STEPS * 4 * 4
    assert sum(counts.values()) == counts["consumed"]


@pytest.mark.slow
def test_two_actors_come_to_the_chain_of_one(undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", overrides=["actors.replicas=2"])

    check_same(job, job.finish(), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_hangs_is_started_again(role, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", overrides=["limits.noProgressSeconds=5"], steps_max=8)
    job.wait_until(lambda status: status.step >= 4)

    job.signal(role, signal.SIGSTOP)
    job.limit_steps()

    check_same(job, job.finish(), undisturbed)
    assert f"{role} has not moved for too long" in job.said()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_was_asked_to_leave_is_started_again(role, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", steps_max=8)
    job.wait_until(lambda status: status.step >= 4)

    job.signal(role, signal.SIGTERM)
    job.limit_steps()

    check_same(job, job.finish(), undisturbed)
