"""A run in real pods whose model and rows lie in a bucket and are no run's: it comes to the chain of the same files on this machine.

The coordinator's pod fetches both; the learner's takes the model from the run's own objects. What the runtime does not
name is refused before there is a pod.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bucket import BUCKET, Bucket, serving
from installation import cache_of
from samples import build_small_run
from watched import Stage, read_result, run_here

from rollout.models.files import model_files
from rollout.models.resolve import resolve_model
from runs import lay_over
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 4
REFUSED_SECONDS, END_SECONDS = 120.0, 400.0
MODEL, ROWS = f"s3://{BUCKET}/models/tiny", f"s3://{BUCKET}/rows/sums.jsonl"
LINES = "".join(
    json.dumps({"prompt": f"{one}+{other}=", "answer": str(one + other)}) + "\n"
    for one in range(1, 7)
    for other in range(1, 7)
)


def build_manifest(name: str, runtime: str, model: str, rows: str) -> dict[str, Any]:
    train = {
        "algorithm": {"sft": {"batchSize": 4, "maxLength": 64}},
        "data": {"jsonl": {"uri": rows}},
        "maxSteps": STEPS,
    }
    reference = {"kind": "ClusterRolloutRuntime", "name": runtime}
    spec = {"seed": 7, "model": {"uri": model}, "numerics": {"mode": "Exact"}}
    return build_small_run(name, train, runtimeRef=reference, **spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """A model and rows in a bucket, the same ones in folders of this machine, and a runtime that names the bucket's."""

    bucket: Bucket
    runtime: str
    model: Path
    rows: Path


@pytest.fixture(scope="module")
def far(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    runtime, folder = f"far-{stage.kubectl.namespace}", tmp_path_factory.mktemp("far")
    model = resolve_model("rollout://tiny-adder?steps=0").path
    (folder / "sums.jsonl").write_text(LINES)
    with serving(stage.cluster, tmp_path_factory.mktemp("s3")) as bucket:
        client = bucket.client()
        for one in model_files(model):
            client.put_object(Bucket=BUCKET, Key=f"models/tiny/{one.name}", Body=one.read_bytes())
        client.put_object(Bucket=BUCKET, Key="rows/sums.jsonl", Body=LINES.encode())
        named = {"allowed": {"storage": [f"s3://{BUCKET}/models/", f"s3://{BUCKET}/rows/"]}}
        given = bucket.runtime(runtime, cache_of(stage.kubectl))
        stage.kubectl.apply(lay_over(given, {"spec": named}))
        yield Far(bucket=bucket, runtime=runtime, model=model, rows=folder / "sums.jsonl")
        stage.kubectl("delete", "clusterrolloutruntime", runtime)


def test_what_the_runtime_does_not_name_is_refused_before_there_is_a_pod(far: Far, stage: Stage):
    run = stage.start(build_manifest("stranger", far.runtime, f"s3://{BUCKET}/others/tiny", ROWS))

    def refused() -> str | None:
        found = run.condition("Stalled")
        return found.get("message") if found.get("reason") == "NotAllowed" else None

    message = wait_until(refused, "the refusal", REFUSED_SECONDS)
    assert "spec.model.uri" in message
    assert not run.pods()
    stage.kubectl("delete", "rolloutrun", "stranger")


def test_it_comes_to_the_chain_of_the_same_files_on_this_machine(
    far: Far, stage: Stage, tmp_path: Path
):
    run = stage.start(build_manifest("far", far.runtime, MODEL, ROWS))
    assert run.wait_for_end(END_SECONDS)["reason"] == "Succeeded", run.describe()
    found = read_result(run.folder())

    here = build_manifest("far", far.runtime, far.model.as_uri(), far.rows.as_uri())
    assert found.chains == run_here(here, tmp_path).chains
    assert [step for step, _ in found.chains][-1] == STEPS
