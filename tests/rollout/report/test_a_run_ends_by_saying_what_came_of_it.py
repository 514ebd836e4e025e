"""When a run ends, the terminal says what came of it, where it lies and what to do next; commands there can be pasted."""

import pytest
from report_kit import make_report, make_step
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.cli.outcomes import print_end, print_outcome, print_where


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_the_way_of_each_evaluation_is_told_with_both_intervals(capsys):
    print_outcome(make_report())
    lines = lines_of(capsys)
    assert "  outcome      Succeeded (20 steps committed)" in lines
    assert (
        "  sums report  accuracy 0.300 [0.200, 0.400] (step 0) -> 0.800 [0.700, 0.900] (step 20)"
        in lines
    )
    assert "  hash chain   blake3:abc" in lines


@pytest.mark.parametrize(
    ("num_steps", "said"),
    [
        (20, " -> "),
        (20, "(first and last 10 steps)"),
        (5, "(first and last 2 steps)"),
        (2, "(first and last step)"),
    ],
)
def test_a_short_run_is_not_compared_with_itself(capsys, num_steps, said):
    print_outcome(make_report(steps=[make_step(step) for step in range(1, num_steps + 1)]))
    [reward] = [line for line in lines_of(capsys) if line.startswith("  reward ")]
    assert said in reward


def test_one_step_has_one_value(capsys):
    print_outcome(make_report(steps=[make_step(1)]))
    [reward] = [line for line in lines_of(capsys) if line.startswith("  reward ")]
    assert "->" not in reward


def next_commands(capsys):
    return [line.split(maxsplit=1)[1] for line in lines_of(capsys) if line.startswith("  next ")]


@pytest.mark.parametrize(
    ("outcome", "kept"), [("Succeeded", 0), ("Failed", 0), ("Failed", 2), ("Interrupted", 0)]
)
def test_every_command_that_is_told_exists(tmp_path, capsys, outcome, kept):
    print_where(make_report(outcome=outcome), tmp_path / "a run", None, num_evidence=kept)
    told = next_commands(capsys)
    assert told
    for command in told:
        assert f"'{tmp_path / 'a run'}'" in command, "a path with a space is one word"
        words = command.removeprefix("rollout ").partition("'")[0].split()
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, command


@pytest.mark.parametrize(("outcome", "told"), [("Succeeded", 1), ("Failed", 0)])
def test_a_run_that_has_made_a_model_says_how_it_is_taken_home(tmp_path, capsys, outcome, told):
    print_where(make_report(outcome=outcome), tmp_path / "adder-1", None)
    wanted = f"rollout model export {tmp_path / 'adder-1'} --to adder-model"
    assert next_commands(capsys).count(wanted) == told


def test_a_run_under_the_folder_of_runs_is_told_by_its_name(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    print_where(make_report(), tmp_path / "adder-1", tmp_path / "adder-1" / "report.html")
    assert f"  report       {tmp_path / 'adder-1' / 'report.html'}" in (lines := lines_of(capsys))
    assert "  next         rollout runs samples adder-1 --step 20" in lines


def test_a_run_that_never_began_is_told_nothing_more_of(tmp_path, capsys):
    print_end(tmp_path, page=None)
    assert lines_of(capsys) == []


def test_why_it_failed_is_said_once_on_one_screen(capsys):
    failed = make_report(outcome="Failed", reason="the reward returned nan for row 3")

    print_outcome(failed)
    alone = capsys.readouterr().out
    print_outcome(failed, is_told=True)

    assert "Failed (the reward returned nan for row 3)" in alone
    assert "Failed (why stands above)" in capsys.readouterr().out
