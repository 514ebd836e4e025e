"""Whatever dies of a run whose rows come from a plugin, it goes on with the same rows, to the chain of an undisturbed one."""

from __future__ import annotations

import signal

import psutil
import pytest
from local_jobs import MANIFEST, is_named, members, start_job
from ruins import check_same

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)]

FED = MANIFEST.replace(
    """environment: {builtin: {name: arithmetic, parameters: [{name: digits, value: "1"}]}}""",
    "data: {plugin: {path: sums}}",
).replace("  train:\n", "  code: {path: .}\n  train:\n")
PLUGIN = """
contract: 1
name: sums
version: 1.0.0
kind: data
command: [python, plugin.py]
"""
SUMS = """
from rollout.plugins.serving import serve
serve(data=lambda split: [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(30)])
"""


@pytest.fixture
def place(tmp_path):
    """A folder with the plugin in it."""
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(PLUGIN)
    (folder / "plugin.py").write_text(SUMS)
    return tmp_path


def kill_rows(job):
    """End the process that holds the rows, and nothing else."""
    (coordinator,) = [one for one in members(job.run_dir) if is_named(one, "coordinator")]
    found = [one for one in coordinator.children(recursive=True) if _holds_rows(one)]
    assert found, [one.cmdline() for one in coordinator.children(recursive=True)]
    for one in found:
        one.send_signal(signal.SIGKILL)


def _holds_rows(process: psutil.Process) -> bool:
    try:
        return "rollout.entrypoints.rows" in process.cmdline()
    except psutil.Error:
        return False


def test_a_run_that_loses_its_rows_its_coordinator_and_then_all_comes_to_the_same_chain(place):
    undisturbed = start_job(place / "undisturbed", manifest=FED).finish()
    assert undisturbed["step"] == 12

    job = start_job(place / "runs", manifest=FED, steps_max=2)
    job.wait_until(lambda status: status.step >= 1)
    kill_rows(job)
    job.limit_steps(6)
    job.wait_until(lambda status: status.step >= 5)
    job.kill("coordinator")
    job.limit_steps(9)
    job.wait_until(lambda status: status.step >= 8)
    job.end()

    resumed = start_job(place / "runs", manifest=FED, resume="Latest")
    check_same(resumed, resumed.finish(), undisturbed)
