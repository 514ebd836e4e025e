"""What other runs and users have put into a bucket: a packed model, a wheel."""

import zipfile

import objects_kit as kit
import pytest
from blake3 import blake3

from rollout.errors import ModelNotFound, SpecError
from rollout.models.packed import PackedModel, pack
from rollout.runs.model_transfer import bring_models, take_models
from rollout.runs.wheels import place_wheel
from rollout_api.v1alpha1.storage import CodeWheel, Storage
from rollout_api.worker import Layout, RunIdentity, WorkerOrder


def build_order(folder, uri, endpoint, bucket):
    spec = {
        "model": {"uri": uri},
        "storage": {"uri": f"s3://{bucket}/runs", "endpoint": endpoint},
        "train": {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "rows.jsonl"}}},
    }
    layout = Layout(
        run_dir=str(folder),
        coordinator_url="http://127.0.0.1:1",
        token_file="t",
        objects_dir=str(folder / "objects"),
        ledger_path="l",
    )
    return WorkerOrder.model_validate(
        {"run": RunIdentity(name="second", uid="uid-2"), "spec": spec, "layout": layout}
    )


def test_every_pod_takes_the_first_runs_model_from_its_prefix(
    s3_endpoint, bucket, tmp_path, monkeypatch
):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\x01" * 5000)
    first = kit.s3_store(s3_endpoint, bucket, tmp_path / "first")
    place = f"s3://{bucket}/runs/one"
    uri = str(PackedModel(place=place, digest=first.put_parts(pack(model))))
    for pod, take in (
        ("coordinator", bring_models),
        ("learner", lambda o: take_models(o, "learner")),
    ):
        monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / pod / "cache"))
        order = build_order(tmp_path / pod, uri, s3_endpoint, bucket)
        (folder,) = take(order).values()
        assert folder.startswith(str(tmp_path / pod / "cache"))


def test_a_model_that_is_not_in_the_bucket_is_not_found(s3_endpoint, bucket, tmp_path):
    gone = PackedModel(place=f"s3://{bucket}/runs/one", digest=f"blake3:{'0' * 64}")
    order = build_order(tmp_path, str(gone), s3_endpoint, bucket)
    with pytest.raises(ModelNotFound, match="is not in s3://"):
        bring_models(order)
    with pytest.raises(ModelNotFound, match="is not in s3://"):
        take_models(order, "learner")


def test_a_wheel_lies_where_its_uri_says(s3_endpoint, bucket, tmp_path):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mine.py", "X = 1")
    kit.s3_client(s3_endpoint).put_object(Bucket=bucket, Key="wheels/x.whl", Body=path.read_bytes())
    storage = Storage(endpoint=s3_endpoint)
    uri = f"s3://{bucket}/wheels/x.whl"
    digest = f"blake3:{blake3(path.read_bytes()).hexdigest()}"
    place_wheel(CodeWheel(uri=uri, digest=digest), tmp_path / "code", storage)
    assert (tmp_path / "code" / "mine.py").read_text() == "X = 1"
    with pytest.raises(SpecError, match="there is no s3://"):
        place_wheel(CodeWheel(uri=f"{uri}.gone"), tmp_path / "code", storage)
