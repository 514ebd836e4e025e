import io

from local_status import make_status

from rollout.coordinator.status import Condition, EvaluationStatus, Waiting
from rollout.local.progress import PlainDisplay, make_display, render_line, render_seconds


def evaluation(step: int, accuracy: float, done: int = 50) -> EvaluationStatus:
    return EvaluationStatus(
        name="sums",
        split="report",
        lineage=0,
        step=step,
        num_done=done,
        num_total=50,
        metrics={"accuracy": {"value": accuracy, "low": 0, "high": 1}},
    )


def test_a_line_holds_what_a_person_asks_for():
    status = make_status(
        step=4,
        reward=0.41234,
        loss=-0.01,
        tokens_per_second=12_345.0,
        seconds_per_step=20.0,
        evaluations=(evaluation(0, 0.1), evaluation(4, 0.525)),
    )

    assert render_line(status) == (
        "step 4/10  reward 0.4123  loss -0.01  tokens/s 12.3k  eta 2m00s  eval sums 0.525 at step 4"
    )


def test_an_unfinished_evaluation_is_not_shown():
    assert "eval" not in render_line(make_status(evaluations=(evaluation(0, 0.1, done=3),)))


def test_a_long_wait_names_who_and_because_of_whom():
    waiting = (
        Waiting(who="learner", what="3 groups", culprit="actor-0", seconds=12.2),
        Waiting(who="actor-1", what="tasks", culprit="learner", seconds=0.1),
    )

    assert "waits learner for 3 groups (actor-0, 12s)" in render_line(make_status(waiting=waiting))


def test_the_beat_of_a_synchronous_run_is_no_wait():
    waiting = (Waiting(who="learner", what="groups", culprit="actor-0", seconds=0.2),)

    assert "waits" not in render_line(make_status(waiting=waiting))


def test_a_run_that_cannot_learn_says_so():
    condition = Condition(
        type="Learning", status=False, reason="NoLearningSignal", message="all groups are equal"
    )

    assert "says NoLearningSignal: all groups are equal" in render_line(
        make_status(conditions=(condition,))
    )


def test_seconds_are_written_for_people():
    assert [render_seconds(s) for s in (4.6, 187, 3720)] == ["5s", "3m07s", "1h02m"]


def test_a_plain_display_prints_now_and_then_and_always_the_last():
    stream = io.StringIO()
    display = PlainDisplay(stream, seconds_min=1000)

    for step in range(5):
        display.show(make_status(step=step))
    display.close()

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["0/10", "4/10"]


def test_what_has_not_changed_is_not_repeated():
    stream = io.StringIO()
    display = PlainDisplay(stream, seconds_min=0)

    for _ in range(5):
        display.show(make_status(step=1))

    assert len(stream.getvalue().splitlines()) == 1


def test_a_pipe_gets_plain_lines_and_programs_get_none():
    stream = io.StringIO()

    assert isinstance(make_display("auto", "adder-1", stream), PlainDisplay)
    make_display("none", "adder-1", stream).note("hello")
    assert stream.getvalue() == ""


def test_a_live_display_draws_and_leaves_the_terminal(capsys):
    display = make_display("live", "adder-1")
    display.show(make_status(step=3, reward=0.5))
    display.note("actor-0 died")
    display.close()

    drawn = capsys.readouterr().err
    assert "adder-1" in drawn
    assert "3/10" in drawn
    assert "actor-0 died" in drawn
