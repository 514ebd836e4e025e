"""``actors.autoscale`` on one machine: processes come and go while the run goes on, and nothing is lost."""

from __future__ import annotations

import pytest
from local_jobs import MANIFEST, start_job

pytestmark = pytest.mark.process

SLOW = """
import time

def even(prompts, completions, rows):
    time.sleep(0.8)
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]
"""


def scaled(actors: str, algorithm: str = "promptsPerStep: 4, groupSize: 4") -> str:
    text = MANIFEST.replace("promptsPerStep: 4, groupSize: 4", algorithm)
    return text.replace("  train:\n", f"  actors: {actors}\n  train:\n", 1)


def alive(status):
    return {w.worker for w in status.workers if w.role == "actor" and w.alive and not w.outcome}


def test_actors_join_while_the_learner_waits_for_them(tmp_path):
    manifest = scaled("{replicas: 1, autoscale: {min: 1, max: 3}}")
    job = start_job(tmp_path / "runs", manifest=manifest, reward=SLOW)

    job.wait_until(lambda status: len(alive(status)) == 3)

    result = job.finish()
    assert result["step"] == 12
    assert "actors wanted=3 before=1" in job.logs()


def test_actors_that_wait_for_the_learner_go_in_peace(tmp_path):
    busy = "promptsPerStep: 4, groupSize: 4, epochs: 12, miniBatches: 2"
    job = start_job(
        tmp_path / "runs", manifest=scaled("{replicas: 3, autoscale: {min: 1, max: 3}}", busy)
    )

    status = job.wait_until(lambda status: status.actors_wanted == 1 and len(alive(status)) == 1)

    gone = [w for w in status.workers if w.role == "actor" and w.outcome]
    assert {w.outcome for w in gone} == {"succeeded"}
    assert job.finish()["step"] == 12
    assert "starting it again" not in job.said()
