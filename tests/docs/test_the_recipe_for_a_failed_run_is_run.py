"""The recipe "a run failed last night" is followed as written, on a run that stood still, was ended, and then failed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from docs_kit import ROOT, commands, say, start

from rollout.common.child_processes import Process
from rollout.common.stacks import ask_for_stacks

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PAGE = ROOT / "docs" / "how-to" / "look-inside-a-run.md"
RUN = "last-night"
FAILED, INTERRUPTED = 1, 130
LOOK_SECONDS_MAX = 100.0
"""Bound against hanging only."""
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: last-night}
spec:
  model: {uri: "rollout://tiny-adder?steps=0"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 4}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{python: {path: judge.py, function: judge}, timeoutSeconds: 3600}]
    sampling: {maxNewTokens: 4}
    maxSteps: 10000
"""
JUDGE = """
import pathlib, threading

HERE = pathlib.Path(__file__).parent

def judge(prompts, completions, rows):
    if (HERE / "broken").exists():
        raise KeyError("the judge's answer has no score")
    if (HERE / "away").exists():
        (HERE / "asked").touch()
        wait_for_the_judge()
    return [float(len(completion.text)) for completion in completions]

def wait_for_the_judge():
    threading.Event().wait()
"""


def until(condition: Callable[[], object], process: Process) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + LOOK_SECONDS_MAX
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> Path:
    """The folder of a run whose judge did not answer, which was told to end, and failed once it went on."""
    folder = tmp_path_factory.mktemp("night")
    (folder / "night.yaml").write_text(MANIFEST)
    (folder / "judge.py").write_text(JUDGE)
    said, logs = folder / "said.txt", folder / "runs" / f"{RUN}-1" / "logs"
    learner, actor = logs / "learner.log", logs / "actor-0.log"
    process = start("run", "-f", "night.yaml", folder=folder)
    try:
        until(lambda: learner.exists() and "step=1 " in learner.read_text(), process)
        (folder / "away").touch()
        until((folder / "asked").exists, process)
        ask_for_stacks(process.pid)
        until(lambda: "end of the stacks of process" in said.read_text(), process)
        until(lambda: "in wait_for_the_judge" in actor.read_text(), process)
        process.send_signal(signal.SIGTERM)
        until(lambda: "stopping at the next step boundary" in said.read_text(), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LOOK_SECONDS_MAX) == INTERRUPTED
    finally:
        process.kill()
        process.wait()
    (folder / "broken").touch()
    again = start("run", "-f", "night.yaml", "--resume", "Latest", folder=folder)
    assert again.wait(LOOK_SECONDS_MAX) == FAILED
    return folder


def test_the_recipe_finds_why_the_run_failed_and_where_it_stood(failed):
    steps = [words for page, words in commands() if page == PAGE and RUN in words]

    told = [say(*words, folder=failed) for words in steps]

    shown, logs, kept, piece = told
    assert [words[:2] for words in steps[:3]] == [
        ["runs", "show"],
        ["logs", "tail"],
        ["debug", "evidence"],
    ]
    for text in (shown, logs):
        assert "the judge's answer has no score" in text
    assert "rollout debug evidence last-night" in shown
    assert {"coordinator-told", "learner-told", "actor-0-told"} <= set(kept.split())
    assert "in wait_for_the_judge" in piece
    assert "asyncio tasks" in piece
