"""Killed commands, programs that no image holds, states that do not come back: the program goes on, or is ended before it takes a wrong step."""

from __future__ import annotations

import json
import random
import signal
import sys
import time

import pytest
from process_kit import PROGRAMS, run_alone, steps_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

COUNTER = (sys.executable, str(PROGRAMS / "counter.py"))
KILLS = 6


def images(programs) -> list[dict]:
    text = programs.call("snapshot", "list", "--kind", "process")
    return json.loads(text[text.index("[") :])


def test_a_save_or_a_restore_that_is_killed_anywhere_harms_neither_program_nor_image(programs):
    command = (*COUNTER, "20000", "16", "0.02")
    undisturbed = steps_of(run_alone(programs.folder, *command))
    first = programs.begin("first", "run", "--name", "counter", "--", *command)
    programs.wait_for("first", "step")
    dice = random.Random(1)
    began = time.monotonic()
    programs.save("counter")
    whole = time.monotonic() - began
    for number in range(KILLS):
        steps = len(steps_of(programs.lines("first")))
        saver = programs.begin(f"saver-{number}", "save", "counter")
        time.sleep(dice.random() * whole)  # where it is killed is what the test draws
        saver.kill()
        saver.wait()
        programs.started.remove(saver)
        programs.wait_for("first", "step", steps + 1)
    for one in images(programs):
        programs.call("snapshot", "verify", one["id"])
    last = programs.save("counter", "--stop")
    first.wait()
    before = steps_of(programs.lines("first"))
    for number in range(KILLS):
        attempt = programs.begin(f"attempt-{number}", "restore", last["id"])
        time.sleep(dice.random() * whole)  # likewise
        attempt.kill()
        attempt.wait()
        done = len(steps_of(programs.lines(f"attempt-{number}")))
        assert steps_of(programs.lines(f"attempt-{number}")) == undisturbed[len(before) :][:done]
    programs.go()
    again = programs.begin("again", "restore", last["id"])
    assert again.wait() == 0, programs.lines("again")
    assert before + steps_of(programs.lines("again")) == undisturbed


def test_a_program_that_no_image_holds_is_told_so_and_goes_on(programs):
    run = programs.begin("first", "run", "--", *COUNTER, "20000", "1", "0.02", "sandbox")
    programs.wait_for("first", "step")
    said = programs.call("process", "save", "program", code=2)
    assert "net namespace" in said
    assert "the program goes on" in said
    programs.go()
    assert run.wait() == 0
    alone = run_alone(programs.folder, *COUNTER, "20000", "1", "0")
    assert steps_of(programs.lines("first")) == steps_of(alone)
    assert images(programs) == []


def test_a_state_that_does_not_come_back_takes_no_step(programs):
    programs.begin("first", "run", "--", *COUNTER, "20000", "1", "0.02", "forgetful")
    programs.wait_for("first", "step")
    saved = programs.save("program", "--stop")
    said = programs.call("process", "restore", saved["id"], code=2)
    assert "another state than was imaged" in said
    assert "step " not in said.replace("next step", "")
    assert programs.call("process", "list").startswith("no program runs")


def test_an_open_file_that_has_grown_since_is_named(programs):
    run = programs.begin("first", "run", "--", *COUNTER, "20000", "1", "0.02", "log")
    programs.wait_for("first", "step")
    saved = programs.save("program")
    steps = len(steps_of(programs.lines("first")))
    programs.wait_for("first", "step", steps + 5)
    busy = programs.call("process", "restore", saved["id"], code=2)
    assert "runs: wait for that, or end it" in busy
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    said = programs.call("process", "restore", saved["id"], code=2)
    assert "training.log" in said


def test_another_installation_takes_none_and_other_ways_are_refused(programs, tmp_path):
    programs.begin("first", "run", "--", *COUNTER, "20000", "1", "0.02")
    programs.wait_for("first", "step")
    saved = programs.save("program", "--stop")
    stranger = {"XDG_CONFIG_HOME": str(tmp_path / "stranger")}
    said = programs.call("process", "restore", saved["id"], code=2, **stranger)
    assert "does not trust" in said
    for way, words in {
        "kubelet": "nodes/checkpoint",
        "vllm": "one GPU",
        "none": "turned off",
    }.items():
        assert words in programs.call("process", "restore", saved["id"], "--with", way, code=2)
    no_variable = programs.call("process", "restore", saved["id"], "--renew", "NO_SUCH", code=2)
    assert "no such variable" in no_variable
