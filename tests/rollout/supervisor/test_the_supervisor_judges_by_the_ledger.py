import pytest
from local_status import make_status

from rollout.coordinator.status.stalls import name_culprit
from rollout.protocol.status import RunOutcome, Waiting, WorkerStatus
from rollout.supervisor.watch import (
    Bounds,
    LastMove,
    check_bounds,
    conclude,
    find_stuck,
    has_left,
    track_progress,
)

BOUNDS = Bounds(pre_running_seconds=60, active_seconds=600, no_progress_seconds=30)


def worker(name: str, age: float = 0.0, outcome: str | None = None) -> WorkerStatus:
    return WorkerStatus(
        worker=name,
        role=name.partition("-")[0],
        incarnation=1,
        alive=True,
        heartbeat_age_seconds=age,
        state="",
        loaded_step=None,
        num_tasks=0,
        restarts=0,
        outcome=outcome,
    )


def wait_for_one(name: str, doing: str = "") -> Waiting:
    text = f"t/3 is with {name}{doing}, try 2"
    return Waiting(who="learner", what="groups", culprit=text, seconds=40, workers=(name,))


@pytest.mark.parametrize(
    ("kind", "reason", "interrupted", "code"),
    [
        ("Succeeded", "Completed", False, 0),
        ("Succeeded", "Completed", True, 0),
        ("Failed", "RewardError", False, 1),
        ("Failed", "DataError", False, 2),
        ("Failed", "GateRefused", False, 3),
        ("Stopped", "Interrupted", True, 130),
        ("Stopped", "asked to by somebody else", False, 1),
    ],
)
def test_an_outcome_becomes_an_exit_code(kind, reason, interrupted, code):
    outcome = RunOutcome(kind=kind, reason=reason, message="why")

    ended = conclude(outcome, interrupted=interrupted)

    assert (ended.exit_code, ended.reason, ended.message) == (code, reason, "why")


def test_a_step_a_sample_or_an_evaluation_is_progress():
    first = track_progress(LastMove(), make_status(step=1), 10)
    same = track_progress(first, make_status(step=1), 20)
    moved = track_progress(same, make_status(step=1, dispositions={"consumed": 8}), 30)

    assert (first.at, same.at, moved.at) == (10, 10, 30)


def test_the_named_culprit_is_restarted_when_nothing_moves():
    waiting = (wait_for_one("actor-1"),)
    status = make_status(workers=(worker("actor-0", 99), worker("actor-1")), waiting=waiting)

    assert find_stuck(status, LastMove(at=0), 31, BOUNDS) == "actor-1"
    assert find_stuck(status, LastMove(at=0), 29, BOUNDS) is None


@pytest.mark.parametrize("meant", ["actor-10", "actor-1"])
def test_names_that_are_part_of_each_other_are_told_apart(meant):
    workers = (worker("actor-1"), worker("actor-10"))
    status = make_status(workers=workers, waiting=(wait_for_one(meant),))

    assert find_stuck(status, LastMove(at=0), 31, BOUNDS) == meant
    assert name_culprit(status, 30.0) == meant


def test_a_name_in_the_words_of_another_worker_is_not_the_one_waited_for():
    told = wait_for_one("actor-1", doing=" (took over from actor-0)")
    status = make_status(workers=(worker("actor-0"), worker("actor-1")), waiting=(told,))

    assert find_stuck(status, LastMove(at=0), 31, BOUNDS) == "actor-1"
    assert name_culprit(status, 30.0) == "actor-1"


def test_without_a_culprit_the_most_silent_worker_is_restarted():
    status = make_status(workers=(worker("actor-0", 1), worker("learner", 50)))

    assert find_stuck(status, LastMove(at=0), 31, BOUNDS) == "learner"


def test_a_run_that_never_starts_fails_and_says_for_whom_it_waited():
    waiting = (Waiting(who="learner", what="groups", culprit="actor-0", seconds=59),)

    ended = check_bounds(make_status(waiting=waiting), started_at=0, now=61, bounds=BOUNDS)

    assert ended.reason == "PreRunningSecondsExceeded"
    assert "learner waits for groups (actor-0" in ended.message
    assert check_bounds(make_status(step=1), started_at=0, now=61, bounds=BOUNDS) is None


def test_a_run_that_lasts_too_long_fails():
    ended = check_bounds(make_status(step=9), started_at=0, now=601, bounds=BOUNDS)

    assert ended.reason == "ActiveSecondsExceeded"


def test_a_worker_that_ended_well_is_not_missed():
    workers = (worker("learner", outcome="succeeded"), worker("actor-0"))
    status = make_status(workers=workers, phase="Evaluating")

    assert has_left(status, "learner")
    assert not has_left(make_status(workers=workers, phase="Running"), "learner")
    assert not has_left(status, "actor-0")
    assert not has_left(None, "learner")
    assert find_stuck(status, LastMove(at=0), 31, BOUNDS) == "actor-0"
