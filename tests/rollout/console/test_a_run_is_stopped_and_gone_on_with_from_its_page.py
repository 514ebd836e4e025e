"""Stop and go on: asked for by a page of the console's own, once, and only where the local commands can do it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest
from console_kit import Console, Page, make_run, open_console, open_run

from rollout.runs.run_dir import RunDir, find_owner
from rollout.supervisor.detached import stop_run

WAIT_SECONDS = 120.0
SUPERVISOR = """
import signal, sys, time
from pathlib import Path
from rollout.runs.run_dir import RunDir, RunLock
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(time.time()))
lock = RunLock(RunDir(path=Path(sys.argv[1])))
lock.acquire()
print("ready", flush=True)
sys.stdin.readline()
print(len(asked))
"""


async def post(console: Console, path: str) -> tuple[int, str]:
    headers = {"Origin": console.url}
    async with console.client.post(console.url + path, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.fixture
async def owned(console):
    """A run whose supervisor counts its interrupts."""
    await make_run(console.home, "sum-1", ["5"])
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(console.home / "sum-1")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    process.wait(timeout=60)


async def test_a_running_run_is_interrupted_once_however_often_it_is_asked(console, owned):
    page = Page(await console.page("/runs/sum-1"))
    assert {one.get("action") for one in page.named("form")} == {"/runs/sum-1/stop"}

    answers = [await post(console, "/runs/sum-1/stop") for _ in range(3)]
    owned.stdin.write("\n")
    owned.stdin.flush()

    assert [status for status, _ in answers] == [200] * 3
    assert owned.stdout.readline() == "1\n"


async def test_a_running_run_is_not_gone_on_with(console, owned):
    status, text = await post(console, "/runs/sum-1/resume")

    assert status == 400
    assert "sum-1 is Running" in Page(text).text


async def test_nothing_is_stopped_where_nothing_runs(console):
    await make_run(console.home, "sum-1", ["5"])

    status, text = await post(console, "/runs/sum-1/stop")

    assert status == 400
    assert "sum-1 is not running" in Page(text).text


async def test_a_run_that_has_ended_has_no_button(console):
    ledger = await open_run(console.home, "sum-1", ["5"])
    await ledger.set_outcome({"kind": "Succeeded", "reason": "Finished", "message": ""})
    await ledger.close()

    assert Page(await console.page("/runs/sum-1")).named("form") == []
    assert (await post(console, "/runs/sum-1/resume"))[0] == 400


async def test_a_run_that_does_not_go_on_says_why(console):
    await make_run(console.home, "sum-1", ["5"])
    (console.home / "sum-1" / "run.yaml").write_text("kind: Nothing\n")

    status, text = await post(console, "/runs/sum-1/resume")

    assert status == 400
    assert "sum-1 did not go on (exit code 2)" in Page(text).text


MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: sum}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 2, groupSize: 2}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 100000
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A real run in the background; whatever happens, it does not outlive the test."""
    (tmp_path / "sum.yaml").write_text(MANIFEST)
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    command = [sys.executable, "-m", "rollout", "run", "-f", str(tmp_path / "sum.yaml"), "--detach"]
    subprocess.run(command, check=True, capture_output=True)
    run = RunDir(path=tmp_path / "runs" / "sum-1")
    yield run
    stop_run(run, at_once=True)


@pytest.mark.process
async def test_a_real_run_stops_saves_and_goes_on(started):
    async with open_console(started.path.parent) as console:
        await console.enter()
        await until_step(console, 1)
        await post(console, "/runs/sum-1/stop")
        await until_nobody_has(started)
        before = await step_of(console)
        status, text = await post(console, "/runs/sum-1/resume")
        assert status == 200, text
        await until_step(console, before + 1)


async def step_of(console: Console) -> int:
    text = Page(await console.page("/")).text
    found = re.search(r"(\d+) / 100,000", text)
    return int(found[1]) if found else 0


async def until_step(console: Console, step: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await step_of(console) < step:
            await asyncio.sleep(0.5)


async def until_nobody_has(run: RunDir) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while find_owner(run) is not None:
            await asyncio.sleep(0.2)
