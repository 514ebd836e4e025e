import io

from local_status import make_status
from rich.console import Console

from rollout.protocol.status import Condition, EvaluationStatus, RunOutcome, Waiting
from rollout.supervisor.display.facts import render_line, render_seconds
from rollout.supervisor.display.live import build_block
from rollout.supervisor.display.progress import PlainDisplay, make_display


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


def test_an_unfinished_evaluation_says_how_far_it_is():
    status = make_status(
        step=10, phase="Evaluating", evaluations=(evaluation(0, 0.1), evaluation(10, 0.0, done=3))
    )

    line = render_line(status)

    assert "step 10/10 (evaluating)" in line
    assert "eval sums 0.100 at step 0; sums 3/50 at step 10" in line


def test_there_is_no_time_left_to_tell_when_all_steps_are_made():
    assert "eta" not in render_line(make_status(step=10, seconds_per_step=2.0))


def test_the_slower_side_is_named_and_balance_is_not():
    assert "bottleneck actors" in render_line(make_status(bottleneck="Actors"))
    assert "bottleneck" not in render_line(make_status(bottleneck="Balanced"))


def test_a_long_wait_names_who_and_because_of_whom():
    waiting = (
        Waiting(who="learner", what="3 groups", culprit="actor-0", seconds=12.2),
        Waiting(who="actor-1", what="tasks", culprit="learner", seconds=0.1),
    )

    assert "waiting 12s: learner for 3 groups: actor-0" in render_line(make_status(waiting=waiting))


def test_what_the_run_itself_waits_for_is_shown_before_those_who_wait_because_of_it():
    waiting = (
        Waiting(who="learner", what="3 groups", culprit="actor-0", seconds=31.0),
        Waiting(who="run", what="room for the ledger", culprit="no space left", seconds=30.0),
    )

    assert "waiting 30s: run for room for the ledger: no space left" in render_line(
        make_status(waiting=waiting)
    )


def test_the_beat_of_a_synchronous_run_is_no_wait():
    waiting = (Waiting(who="learner", what="groups", culprit="actor-0", seconds=0.2),)

    assert "waiting" not in render_line(make_status(waiting=waiting))


def test_a_run_that_has_ended_waits_for_nobody():
    waiting = (Waiting(who="learner", what="groups", culprit="actor-0", seconds=9.0),)
    outcome = RunOutcome(kind="Stopped", reason="Interrupted", message="")
    status = make_status(
        step=4,
        phase="Stopped",
        seconds_per_step=2.0,
        bottleneck="Actors",
        waiting=waiting,
        outcome=outcome,
    )

    assert render_line(status) == "step 4/10 (stopped)"


def test_a_run_that_cannot_learn_says_so():
    condition = Condition(
        type="Learning", status=False, reason="NoLearningSignal", message="all groups are equal"
    )

    assert "says NoLearningSignal: all groups are equal" in render_line(
        make_status(conditions=(condition,))
    )


def test_a_tracker_that_failed_is_told_and_what_holds_is_not():
    failed = Condition(type="Tracking", status=False, reason="TrackerFailed", message="disk full")
    holds = Condition(type="WeightsVerified", status=True, reason="Verified", message="")

    line = render_line(make_status(conditions=(failed, holds)))

    assert line.endswith("says TrackerFailed: disk full")


def test_a_display_without_a_new_step_prints_less_often(monkeypatch):
    stream, clock = io.StringIO(), iter([0.0, 0.0, 3.0, 3.0, 6.0, 6.0])
    monkeypatch.setattr("rollout.supervisor.display.progress.time.monotonic", lambda: next(clock))
    display = PlainDisplay(stream, seconds_min=2)

    display.show(make_status(step=1))
    display.show(make_status(step=1, reward=0.5))
    display.show(make_status(step=2, reward=0.5))

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/10", "2/10"]


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


def draw(block, width: int = 90) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(block)
    return console.file.getvalue()


def test_a_live_block_is_seen_before_anything_answers():
    assert draw(build_block("adder-1", None, 7.0)).split()[-3:] == ["0", "(starting)", "7s"]


def test_a_live_block_has_its_bar_and_step_on_one_line_and_each_fact_on_its_own():
    status = make_status(step=5, seconds_per_step=2.0, reward=0.5, loss=0.1)

    lines = draw(build_block("adder-1", status, 70.0)).splitlines()

    assert lines[0].startswith("adder-1")
    assert lines[0].rstrip().endswith("5/10  1m10s  eta 10s")
    assert [line.split() for line in lines[1:]] == [["reward", "0.5"], ["loss", "0.1"]]


def test_brackets_in_a_message_are_text():
    condition = Condition(type="Learning", status=False, reason="R", message="see row [/x] [red]")

    assert "see row [/x] [red]" in draw(
        build_block("adder-1", make_status(conditions=(condition,)), 1.0)
    )


def test_a_live_display_draws_and_leaves_the_terminal(capsys):
    display = make_display("live", "adder-1")
    display.show(make_status(step=3, reward=0.5))
    display.note("actor-0 died")
    display.close()

    drawn = capsys.readouterr().err
    assert "adder-1" in drawn
    assert "3/10" in drawn
    assert "actor-0 died" in drawn
