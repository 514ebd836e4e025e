"""SIGTERM in ``Fast``, with real processes: what an actor had begun is gone on with, and nothing is lost."""

from __future__ import annotations

import signal

import pytest
from local_jobs import MANIFEST, start_job

from rollout.report.gather import open_ledger

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

LONG = MANIFEST.replace("context=64", "context=2048").replace(
    "sampling: {maxNewTokens: 5}", "sampling: {maxNewTokens: 1500, minNewTokens: 1500}"
)
FAST = LONG.replace("maxSteps: 12", "maxSteps: 3").replace(
    "  train:\n", "  numerics: {mode: Fast}\n  actors: {replicas: 2}\n  train:\n", 1
)
TOKEN_SECONDS = 0.05
"""A completion takes over a minute: an actor that has begun one has it in hand for as long as it takes to ask it to go."""


def test_what_an_actor_had_begun_is_gone_on_with(tmp_path):
    job = start_job(
        tmp_path / "runs",
        manifest=FAST.partition("  evaluations:")[0],
        lease_seconds=6.0,
        slow_tokens=TOKEN_SECONDS,
        plain=True,
    )
    job.wait_until(lambda _: job.has_begun("actor-0"))
    job.signal("actor-0", signal.SIGTERM)
    job.wait_until(lambda _: "handing back" in job.log("actor-0"))
    job.wait_until(lambda status: any(w.restarts for w in status.workers if w.alive))
    job.slow_tokens(0.0)

    result = job.finish()

    assert result["step"] == 3
    assert result["dispositions"]["consumed"] == 3 * 4 * 4
    with open_ledger(job.run_dir) as ledger:
        made = [view.trajectory for step in (1, 2, 3) for view in ledger.samples(step)]
    assert {len(one.token_ids) for one in made} == {1500}
    assert any(len(one.spans) > 1 for one in made)
