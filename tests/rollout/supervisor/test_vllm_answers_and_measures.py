"""Runs without a learner sample with a real vLLM server: each row once, whatever dies, and rows of any length together."""

from __future__ import annotations

import json
import random
import signal

import pytest
from local_jobs import start_job

pytestmark = [pytest.mark.process, pytest.mark.vllm, pytest.mark.timeout(3000)]

SECONDS_MAX = 1500.0
NUM_ROWS = 48
TOO_LONG = 5
HEAD = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: answers}
spec:
  seed: 11
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=96"}
  actors: {engine: {vllm: {maxNumSeqs: 8}}}
  limits: {noProgressSeconds: 1500}
"""
BATCH = f"""{HEAD}
  infer:
    data: {{jsonl: {{uri: rows.jsonl}}}}
    samplesPerPrompt: 2
    logprobs: true
    sampling: {{maxNewTokens: 24}}
"""
MEASURED = f"""{HEAD}
  evaluate: {{}}
  evaluations: [{{name: sums, suite: {{builtin: {{name: arithmetic}}}}, maxPrompts: 24, maxNewTokens: 8}}]
"""
FAST = "numerics.mode=Fast"
LEASE_SECONDS = 6.0


def start_batch(folder, **options):
    """Rows of unequal lengths, one of which leaves no room to answer."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(3)
    lines = [{"prompt": "1+" * chance.randrange(1, 20) + "2=", "id": n} for n in range(NUM_ROWS)]
    lines[TOO_LONG]["prompt"] = "7" * 90
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return start_job(folder / "runs", manifest=BATCH, lease_seconds=LEASE_SECONDS, **options)


def finish(job) -> dict:
    code = job.wait(SECONDS_MAX)
    assert code == 0, f"exit code {code}\n{job.said()}\n{job.logs()}"
    return job.result()


def files_of(job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (job.run_dir / "results").iterdir()}


def lines_of(job, name: str) -> list[dict]:
    return [json.loads(line) for line in files_of(job)[name].splitlines()]


def test_rows_of_unequal_lengths_are_each_answered_once_in_order(tmp_path):
    job = start_batch(tmp_path, overrides=[FAST])
    result = finish(job)

    answered = lines_of(job, "results.jsonl")
    assert [one["row"] for one in answered] == [n for n in range(NUM_ROWS) if n != TOO_LONG]
    assert all(len(one["completions"]) == 2 for one in answered)
    (refused,) = lines_of(job, "errors.jsonl")
    assert (refused["row"], refused["error"]["code"]) == (TOO_LONG, "context_length_exceeded")
    assert (result["infer"]["num_done"], result["infer"]["num_failed"]) == (NUM_ROWS - 1, 1)
    for one in answered:
        for made in one["completions"]:
            assert 1 <= len(made["token_ids"]) == len(made["token_logprobs"]) <= 24


@pytest.mark.slow
def test_an_actor_that_is_killed_with_its_server_changes_no_byte(tmp_path):
    untouched = start_batch(tmp_path / "untouched")
    finish(untouched)

    job = start_batch(tmp_path / "killed")
    job.wait_until(
        lambda status: status.infer is not None and status.infer.num_done >= 1, SECONDS_MAX
    )
    job.signal("actor-0", signal.SIGKILL)
    finish(job)

    assert "starting it again" in job.said()
    assert files_of(job) == files_of(untouched)


@pytest.mark.slow
def test_a_suite_is_measured_by_vllm_as_often_as_it_has_prompts(tmp_path):
    job = start_job(tmp_path / "runs", manifest=MEASURED, overrides=[FAST])
    result = finish(job)

    (measured,) = result["evaluations"]
    assert (measured["num_done"], measured["num_total"]) == (24, 24)
    assert measured["metrics"]["num_prompts"] == 24
