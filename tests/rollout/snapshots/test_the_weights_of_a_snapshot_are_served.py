"""The weights of a snapshot, over the model that its run began with, are served whole and verified, or refused by name."""

from __future__ import annotations

import json

import pytest
from warm import run_rollout

from rollout.errors import SnapshotRefused, StoreError
from rollout.models.files import digest_model
from rollout.models.resolve import resolve_model
from rollout.pods.serving.snapshot import unfold_snapshot
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.snapshots.layers.registry import TRAIN_STATE
from rollout.snapshots.signing import open_signer
from rollout.weights.numbers import read_tensors
from rollout.weights.shards import combine_raw, digest_file
from rollout_api.worker import AdoptOrder

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

BASE = "rollout://tiny-adder?steps=0"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A snapshot of a run that trained one step, and what a pod is told to serve it by."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "rows.jsonl").write_text(
        json.dumps({"prompt": "11+11=", "chosen": "022", "answer": "022"}) + "\n"
    )
    spec = {
        "model": {"uri": BASE, "chatTemplate": TEMPLATE},
        "train": {
            "algorithm": {"sft": {"batchSize": 1, "maxLength": 64}},
            "data": {"jsonl": {"uri": "rows.jsonl"}},
            "maxSteps": 1,
        },
        "storage": {"uri": (folder / "bucket").as_uri()},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "metadata": {"name": "sft"}}
    (folder / "run.yaml").write_text(json.dumps({**head, "spec": spec}))
    home = {"ROLLOUT_HOME": str(folder / "runs")}
    done = run_rollout("run", "-f", "run.yaml", folder=folder, environment=home)
    assert done.returncode == 0, done.stdout + done.stderr
    signer = open_signer(folder / "signer.key")
    made = create_snapshot(RunDir(path=folder / "runs" / "sft-1"), signer, step=1)
    order = AdoptOrder(
        snapshot=made.manifest.id,
        place=f"file://{made.place.where}",
        trusted=(signer.public,),
        namespace=made.manifest.header.run.namespace,
    )
    return made, order


def unfold(order, folder, base=BASE):
    return unfold_snapshot(order, resolve_model(base), folder / "scratch", folder / "model")


def test_its_tensors_are_those_of_its_step_and_the_rest_is_the_models(saved, tmp_path):
    made, order = saved
    found = unfold(order, tmp_path)
    weights = found / "model.safetensors"
    version = TRAIN_STATE.read(made.manifest.layer("train_state"), made.place.source).version
    assert combine_raw(digest_file(weights, read_tensors(weights))) == version.digest
    base = resolve_model(BASE).path
    assert (found / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert digest_model(found) != digest_model(base)
    assert not (tmp_path / "scratch").exists()
    assert unfold(order, tmp_path) == found, "a container that starts again takes what is there"


def test_the_chat_template_that_it_was_trained_with_goes_with_it(saved, tmp_path):
    found = unfold(saved[1], tmp_path)
    assert any(TEMPLATE in path.read_text() for path in found.iterdir() if path.suffix == ".jinja")


def test_another_model_than_its_run_began_with_is_refused_with_both_digests(saved, tmp_path):
    other = "rollout://tiny-adder?steps=1"
    with pytest.raises(SnapshotRefused, match="baseURI") as refused:
        unfold(saved[1], tmp_path, other)
    for one in (BASE, other):
        assert resolve_model(one).digest in str(refused.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("changes", [{"trusted": ()}, {"namespace": "elsewhere"}])
def test_what_nobody_vouches_for_or_another_namespace_made_is_not_served(saved, tmp_path, changes):
    with pytest.raises(SnapshotRefused):
        unfold(saved[1].model_copy(update=changes), tmp_path)
    assert not (tmp_path / "model").exists()


def test_weights_that_were_changed_are_not_served(saved, tmp_path):
    made, order = saved
    version = TRAIN_STATE.read(made.manifest.layer("train_state"), made.place.source).version
    path = made.place.source.path(version.object)
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(StoreError):
            unfold(order, tmp_path)
    finally:
        path.write_bytes(whole)
    assert not (tmp_path / "model").exists()
