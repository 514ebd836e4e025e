"""In Exact, real vLLM actors and a learner of two ranks come to the same chain, also when an actor is killed."""

import signal

import psutil
import pytest
from local_jobs import MANIFEST, is_named, members, start_job
from ruins import check_same

pytestmark = [
    pytest.mark.process,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(3000),
]

OVERRIDES = [
    "actors.engine.vllm.maxNumSeqs=1",
    "learner.processesPerNode=2",
    "train.maxSteps=4",
    "snapshots.everySteps=2",
    "limits.noProgressSeconds=1500",
]
SECONDS_MAX = 1500.0


def start(folder, actors: int):
    return start_job(
        folder / "runs", manifest=MANIFEST, overrides=[*OVERRIDES, f"actors.replicas={actors}"]
    )


def finish(job) -> dict:
    code = job.wait(SECONDS_MAX)
    assert code == 0, f"exit code {code}\n{job.said()}\n{job.logs()}"
    return job.result()


def server_of(job, actor: str) -> list[psutil.Process]:
    """Everything that an actor's vLLM server runs."""
    (process,) = [one for one in members(job.run_dir) if is_named(one, actor)]
    return process.children(recursive=True)


def test_two_actors_one_of_them_killed_come_to_the_chain_of_one(tmp_path):
    alone = finish(start(tmp_path / "one", 1))

    job = start(tmp_path / "two", 2)
    job.wait_until(lambda status: status.step >= 1, SECONDS_MAX)
    left = server_of(job, "actor-1")
    job.signal("actor-1", signal.SIGKILL)
    result = finish(job)

    assert left
    assert not [one for one in left if one.is_running()]
    assert "starting it again" in job.said()
    check_same(job, result, alone)
