"""`cacheReference` as a user sets it: the file fills in the first run, and the second comes to the same chain."""

import json

import pytest
from local_jobs import start_job

from rollout.learner.objectives.preference.reference_store import RECORD_BYTES

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MODEL = "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"
MANIFEST = f"""
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: small}}
spec:
  model: {{uri: "{MODEL}"}}
  train:
    algorithm: {{dpo: {{batchSize: 4, maxLength: 48}}}}
    data: {{jsonl: {{uri: pairs.jsonl, promptField: q}}, evalFraction: "0.2"}}
    heldOut: {{everySteps: 2}}
    cacheReference: true
    maxSteps: 6
"""


def write_pairs(folder) -> None:
    rows = [{"q": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(3 * n + 1)} for n in range(15)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_with_a_filled_cache_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    write_pairs(tmp_path)
    cold = start_job(tmp_path / "cold", manifest=MANIFEST).finish()
    [file] = (tmp_path / "cache" / "reference").iterdir()
    size = file.stat().st_size
    assert size % RECORD_BYTES == 0
    assert size >= 12 * 2 * RECORD_BYTES

    warm = start_job(tmp_path / "warm", manifest=MANIFEST).finish()

    assert warm["chain"] == cold["chain"]
    assert file.stat().st_size == size
