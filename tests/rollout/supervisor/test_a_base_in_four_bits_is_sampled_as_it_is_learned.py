"""QLoRA as a user starts it: actors sample what the learner computes with, restored from 4 bits, adapter merged in."""

import json

import pytest
from local_jobs import MANIFEST, start_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_actors_and_learner_have_one_policy_and_a_kill_changes_nothing(tmp_path):
    model = MANIFEST[MANIFEST.index("uri:") : MANIFEST.index("}\n  train:")]
    text = MANIFEST.replace(model, model + ", lora: {rank: 4, alpha: 8, quantization: NF4}")
    text = text.replace("maxSteps: 12", "maxSteps: 8")
    job = start_job(tmp_path / "one" / "runs", manifest=text)
    calm = job.finish()
    steps = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    mismatches = [abs(step["mismatch_kl"]) for step in steps if "mismatch_kl" in step]
    assert len(mismatches) == 8
    assert max(mismatches) < 1e-6

    other = start_job(tmp_path / "two" / "runs", manifest=text)
    other.wait_until(lambda status: status.step >= 5)
    other.kill("learner")
    assert other.finish()["chain"] == calm["chain"]
