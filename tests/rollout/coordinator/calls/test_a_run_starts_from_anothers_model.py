"""A run that has succeeded hands its models on before the operator hears of its end; another one starts from them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
from coordinator_kit import FakeActor, FakeLearner, run_to_end, wait_for_outcome
from pod_kit import Pods

from rollout.coordinator.duties.model_export import hand_over
from rollout.coordinator.status.progress import describe_progress
from rollout.errors import StoreError
from rollout.models.files import digest_model
from rollout.pods.orders import read_order
from rollout.runs.model_transfer import bring_models
from rollout_api.v1alpha1.run_status import Progress
from rollout_api.worker import ResolvedRun, WorkerConfig

CLAIM = "ledger-uid-arithmetic-coordinator-0"


def finish(bench):
    """A whole run whose model nobody packs."""
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    run_to_end(FakeActor(client), learner)
    learner.finish()
    wait_for_outcome(client)
    return bench.coordinator.run


def test_its_end_is_told_once_its_model_is_packed(bench):
    run = finish(bench)
    run.packer = lambda _, version: f"s3://bucket/{version.step}"
    before = describe_progress(run)
    assert before.outcome is None
    assert before.last_snapshot.step == 3
    assert before.last_snapshot.model_uri is None

    asyncio.run(hand_over(run))
    after = describe_progress(run)
    assert after.outcome.kind == "Succeeded"
    assert after.last_snapshot.model_uri == "s3://bucket/3"


def test_a_model_that_cannot_be_packed_does_not_change_how_the_run_ended(bench, caplog):
    def fail(*_):
        raise StoreError("no room")

    run = finish(bench)
    run.packer = fail
    asyncio.run(hand_over(run))
    progress = describe_progress(run)
    assert progress.outcome.kind == "Succeeded"
    assert progress.last_snapshot.model_uri is None
    assert "no room" in caplog.text


def train(folder, places, **spec):
    """The pods of a whole run of supervised steps, and what its coordinator would write of it at the end."""
    folder.mkdir()
    run = Pods(folder, **spec)
    run.cluster.places = places
    try:
        run.start("arithmetic-coordinator-0", "coordinator")
        run.learner(0)
        run.until(lambda status: read_progress(run).outcome is not None, "the end")
        return run, read_progress(run)
    finally:
        run.close()


def read_progress(run) -> Progress:
    headers = {"Authorization": f"Bearer {run.cluster.issuer.token('operator')}"}
    trust = ssl.create_default_context(cafile=str(run.cluster.ca))
    answer = httpx.get(f"{run.cluster.url}/v1/progress", headers=headers, verify=trust)
    return Progress.model_validate_json(answer.raise_for_status().content)


def found_by(run, pod) -> ResolvedRun:
    path = run.cluster.folder / f"arithmetic-{pod}" / "run" / "worker.json"
    return WorkerConfig.model_validate_json(path.read_bytes()).resolved


@pytest.mark.process
def test_pods_of_the_next_run_have_the_model_that_the_first_has_made(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    first, made = train(tmp_path / "first", {"objects_uri": f"pvc://{CLAIM}/objects"})
    assert made.outcome.kind == "Succeeded"
    uri = made.last_snapshot.model_uri
    assert uri.startswith(f"pvc://{CLAIM}/objects/blake3/")

    sources = tmp_path / "sources"
    sources.mkdir()
    volume = sources / CLAIM
    volume.symlink_to(first.cluster.folder / "arithmetic-coordinator-0" / "run")
    model = {"uri": uri}
    second, done = train(tmp_path / "second", {"sources_dir": str(sources)}, model=model)
    assert (done.step, done.outcome.kind) == (2, "Succeeded")
    started = found_by(second, "coordinator-0")
    assert found_by(second, "learner-0").model_digest == started.model_digest
    assert started.model_digest != found_by(first, "coordinator-0").model_digest
    assert digest_model(Path(started.model_path)) == started.model_digest

    volume.unlink()
    order = read_order(second.cluster.order("arithmetic-coordinator-0", "coordinator", model=model))
    assert bring_models(order), "once copied, the volume of the first run is not needed again"
