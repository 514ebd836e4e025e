"""Rows in Parquet, answers in Parquet in a bucket: each once and in order; a bucket that is not there is found before anything is sampled."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_jobs import start_job

sys.path.append(str(Path(__file__).parents[1] / "objects"))
import objects_kit as kit

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

NUM_ROWS = 240
PLACE = "s3://answers/of/one"
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: answers}}
spec:
  seed: 11
  model: {{uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}}
  storage: {{uri: "s3://runs/team", endpoint: "{endpoint}"}}
  infer:
    data: {{jsonl: {{uri: rows.parquet}}}}
    output: {{uri: "{place}", format: Parquet}}
    samplesPerPrompt: 2
    logprobs: true
    sampling: {{maxNewTokens: 24}}
"""
LEASE_SECONDS = 4.0
TOKEN_SECONDS = 0.1
"""Two batches of up to 24 tokens each: the second is under way for seconds when the first is counted."""


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    kit.set_credentials(monkeypatch)
    (tmp_path / "s3").mkdir()
    with kit.s3_server(tmp_path / "s3") as found:
        for name in ("runs", "answers"):
            kit.s3_client(found).create_bucket(Bucket=name)
        yield found


def start(folder, endpoint, place=PLACE, **options):
    folder.mkdir(exist_ok=True)
    rows = [
        {"prompt": f"{n}+{n % 7}=", "n": n if n != 7 else float("inf")} for n in range(NUM_ROWS)
    ]
    schema = pa.schema([("prompt", pa.string()), ("n", pa.float64())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "rows.parquet")
    manifest = MANIFEST.format(endpoint=endpoint, place=place)
    return start_job(folder / "runs", manifest=manifest, lease_seconds=LEASE_SECONDS, **options)


def read(endpoint: str, name: str, place: str = "of/one") -> bytes:
    found = kit.s3_client(endpoint).get_object(Bucket="answers", Key=f"{place}/{name}")
    return found["Body"].read()


def test_rows_that_a_killed_actor_answered_are_there_once(endpoint, tmp_path):
    job = start(tmp_path / "one", endpoint, slow_tokens=TOKEN_SECONDS)
    job.wait_until(lambda status: status.infer is not None and status.infer.num_done >= 1)
    job.kill("actor-0")
    job.slow_tokens(0.0)
    result = job.finish()

    assert "starting it again" in job.said()

    table = pq.read_table(io.BytesIO(read(endpoint, "results.parquet")))
    assert table["row"].to_pylist() == [n for n in range(NUM_ROWS) if n != 7]
    assert [json.loads(one)["n"] for one in table["input"].to_pylist()] == table["row"].to_pylist()
    for made in table["completions"].to_pylist():
        assert [len(one["token_ids"]) == len(one["token_logprobs"]) for one in made] == [True] * 2
    (refused,) = read(endpoint, "errors.jsonl").splitlines()
    assert (json.loads(refused)["row"], json.loads(refused)["error"]["code"]) == (7, "invalid_row")
    assert f"results in {PLACE}" in result["message"]


@pytest.mark.slow
def test_a_bucket_that_goes_away_while_rows_are_answered_is_waited_for(endpoint, tmp_path):
    client = kit.s3_client(endpoint)
    job = start(tmp_path / "one", endpoint, slow_tokens=TOKEN_SECONDS)
    job.wait_until(lambda status: status.infer is not None and status.infer.num_done >= 1)
    client.delete_bucket(Bucket="answers")
    job.slow_tokens(0.0)
    job.wait_until(lambda status: any(one.what == "the place of results" for one in status.waiting))

    client.create_bucket(Bucket="answers")
    job.finish()

    table = pq.read_table(io.BytesIO(read(endpoint, "results.parquet")))
    assert table["row"].to_pylist() == [n for n in range(NUM_ROWS) if n != 7]


def test_results_of_another_run_and_a_bucket_that_is_gone_are_found_first(endpoint, tmp_path):
    client = kit.s3_client(endpoint)
    client.put_object(Bucket="answers", Key="of/one/results.parquet", Body=b"theirs")
    taken = start(tmp_path / "taken", endpoint)
    assert taken.wait() == 2
    assert "is there already, of another run" in taken.said()
    assert read(endpoint, "results.parquet") == b"theirs"

    once = ["limits.retries=0"]
    gone = start(tmp_path / "gone", endpoint, "s3://no-such-bucket/answers", overrides=once)
    assert gone.wait() != 0
    assert "no-such-bucket" in gone.said() + gone.logs()
    assert "generating" not in gone.logs()
