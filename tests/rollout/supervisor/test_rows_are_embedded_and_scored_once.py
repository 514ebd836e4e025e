"""An inference run gives each row its vector or its score, in the order of the file, and the same bytes whatever dies."""

from __future__ import annotations

import base64
import json
import struct
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from local_jobs import start_job

from rollout.models.resolve import resolve_model

sys.path.append(str(Path(__file__).parents[1] / "engines"))

from pooled_models import write_reward_model

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

URI = "rollout://tiny-qwen2?hidden=32&layers=1&heads=2&context=64"
NUM_ROWS = 60
LONG, BROKEN, SEVERAL = 5, 17, 23
LEASE_SECONDS = 4.0
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: answers}}
spec:
  model: {{uri: "{uri}"}}
  infer:
    task: {task}
    data: {{jsonl: {{uri: rows.jsonl}}}}
    {more}
"""


def start(folder: Path, uri: str, task: str, lines: list[str], more: str = "", **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    manifest = MANIFEST.format(uri=uri, task=task, more=more)
    return start_job(folder / "runs", manifest=manifest, lease_seconds=LEASE_SECONDS, **options)


def read(job, name: str) -> list[dict]:
    return [json.loads(one) for one in (job.run_dir / "results" / name).read_text().splitlines()]


def line(number: int, **body: object) -> str:
    given = {"model": "m", "input": f"{number}+1=", **body}
    found = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/embeddings", "body": given}
    return json.dumps(found)


def test_lines_are_embedded_as_a_plain_forward_does_and_bad_ones_named(tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    lines = [line(n) for n in range(NUM_ROWS)]
    lines[LONG] = line(LONG, input="1" * 500)
    lines[BROKEN] = "{broken"
    lines[SEVERAL] = line(SEVERAL, input=["a", "b"])
    lines[30] = line(30, encoding_format="base64")
    job = start(tmp_path, URI, "Embed", lines)
    job.finish()

    results, errors = read(job, "results.jsonl"), read(job, "errors.jsonl")
    bad = {LONG: "context_length_exceeded", BROKEN: "invalid_row", SEVERAL: "unsupported_parameter"}
    assert [one["custom_id"] for one in results] == [
        f"r{n}" for n in range(NUM_ROWS) if n not in bad
    ]
    assert [one["error"]["code"] for one in errors] == list(bad.values())
    folder = resolve_model(URI).path
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for one in results:
        body = one["response"]["body"]
        vector = body["data"][0]["embedding"]
        if one["custom_id"] == "r30":
            packed = base64.b64decode(vector)
            vector = list(struct.unpack(f"<{len(packed) // 4}f", packed))
        ids = tokenizer(f"{one['custom_id'][1:]}+1=")["input_ids"]
        with torch.no_grad():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        assert vector == pytest.approx((state / state.norm()).tolist(), abs=1e-5)
        assert body["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("judge")
    folder = write_reward_model(resolve_model(URI, cache_dir=root / "cache").path, root / "model")
    return f"file://{folder}"


def pairs() -> list[str]:
    return [json.dumps({"prompt": f"{n}+1=", "said": str(n + n % 3)}) for n in range(NUM_ROWS)]


def test_a_run_that_lost_its_actor_has_the_scores_of_one_that_did_not(judge, tmp_path):
    from rollout.learner.model.reward_source import ModelReward
    from rollout.types import Completion, Message

    set_answer = {"overrides": ["infer.data.jsonl.answerField=said"]}
    plain = start(tmp_path / "plain", judge, "Score", pairs(), **set_answer)
    plain.finish()
    scores = [one["score"] for one in read(plain, "results.jsonl")]
    assert len(set(scores)) > NUM_ROWS / 3
    reward = ModelReward(judge.removeprefix("file://"))
    asked = [json.loads(one) for one in pairs()]
    theirs = reward.score(
        [(Message(role="user", content=one["prompt"]),) for one in asked],
        [
            Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=one["said"])
            for one in asked
        ],
        [{}] * NUM_ROWS,
    )
    assert scores == pytest.approx(theirs, abs=1e-5)

    out = tmp_path / "killed" / "out"
    set_answer["overrides"] += [f"infer.output.uri={out}", "infer.output.format=Parquet"]
    killed = start(tmp_path / "killed", judge, "Score", pairs(), **set_answer)
    killed.wait_until(lambda status: status.workers and "actor-0" in str(status.workers))
    killed.kill("actor-0")
    killed.finish()
    table = pq.read_table(out / "results.parquet")
    assert table["row"].to_pylist() == list(range(NUM_ROWS))
    assert table["score"].to_pylist() == scores


def test_a_model_without_a_head_is_refused_before_anything_starts(tmp_path):
    job = start(tmp_path, URI, "Score", [json.dumps({"prompt": "1", "answer": "2"})])
    assert job.wait() == 2
    assert "no reward model" in job.said()
