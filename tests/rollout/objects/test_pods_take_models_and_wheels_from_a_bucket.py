"""What other runs and users have put into a bucket: a packed model, a wheel."""

import zipfile
from pathlib import Path

import objects_kit as kit
import pytest
from blake3 import blake3

from rollout.data.files import find_files
from rollout.errors import ModelNotFound, SpecError
from rollout.models.fetched import root_of
from rollout.models.files import digest_model
from rollout.models.packed import PackedModel, pack
from rollout.runs.model_transfer import (
    POLICY,
    bring_models,
    fetch_far,
    find_brought,
    take_models,
)
from rollout.runs.wheels import place_wheel
from rollout_api.v1alpha1.storage import CodeWheel, Storage
from rollout_api.worker import (
    Layout,
    ResolvedRun,
    RunIdentity,
    WorkerConfig,
    WorkerOrder,
)


def build_order(folder, uri, endpoint, bucket, rows="rows.jsonl"):
    spec = {
        "model": {"uri": uri},
        "storage": {"uri": f"s3://{bucket}/runs", "endpoint": endpoint},
        "train": {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": rows}}},
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


@pytest.fixture
def far(s3_endpoint, bucket):
    """A model's folder and a file of rows, which are no run's."""
    client = kit.s3_client(s3_endpoint)
    files = {"models/tiny/config.json": b"{}", "models/tiny/model.safetensors": b"\x01" * 5000}
    for key, data in {**files, "data/rows.jsonl": b'{"a": 1}\n'}.items():
        client.put_object(Bucket=bucket, Key=key, Body=data)
    return f"s3://{bucket}/models/tiny", f"s3://{bucket}/data/rows.jsonl"


def test_the_coordinator_fetches_a_model_and_the_others_take_it_of_the_run(
    s3_endpoint, bucket, far, tmp_path, monkeypatch
):
    model, rows = far
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "coordinator" / "cache"))
    order = build_order(tmp_path / "coordinator", model, s3_endpoint, bucket, rows)
    packed = fetch_far(order)
    assert list(packed) == [POLICY]
    assert fetch_far(order) == packed, "killed and come back it finds the same"
    [copy] = (tmp_path / "coordinator" / "cache" / "fetched" / "models").iterdir()

    kit.s3_client(s3_endpoint).delete_object(Bucket=bucket, Key="models/tiny/config.json")
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "learner" / "cache"))
    order = build_order(tmp_path / "learner", model, s3_endpoint, bucket, rows)
    taken = take_models(order, "learner", packed)
    assert digest_model(Path(taken[POLICY])) == digest_model(copy)
    assert taken[POLICY].startswith(str(tmp_path / "learner" / "cache"))


def test_what_was_given_to_the_others_is_kept(s3_endpoint, bucket, far, tmp_path):
    order = build_order(tmp_path, far[0], s3_endpoint, bucket)
    digest = f"blake3:{'a' * 64}"
    resolved = ResolvedRun(
        model_path="/m", model_digest=digest, dtype="Float32", prompt_tokens_max=1
    ).model_copy(update={"packed_models": {POLICY: digest}})
    given = {name: getattr(order, name) for name in WorkerOrder.model_fields}
    config = WorkerConfig(**given, spec_digest=digest, resolved=resolved)
    assert find_brought(config) == {digest}


def test_the_container_beside_the_coordinators_reads_the_copies(
    s3_endpoint, bucket, far, tmp_path, monkeypatch
):
    model, rows = far
    cache = tmp_path / "coordinator" / "cache"
    monkeypatch.setenv("ROLLOUT_CACHE", str(cache))
    fetch_far(build_order(tmp_path, model, s3_endpoint, bucket, rows))
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("ROLLOUT_PLACED_FILES", str(root_of(cache)))
    [path] = find_files(rows, tmp_path, tmp_path / "own")
    assert path.read_bytes() == b'{"a": 1}\n'
    assert path.stat().st_mode & 0o044 == 0o044


def test_a_model_that_is_nowhere_is_named_with_its_field(s3_endpoint, bucket, tmp_path):
    order = build_order(tmp_path, f"s3://{bucket}/models/none", s3_endpoint, bucket)
    with pytest.raises(ModelNotFound, match=r"spec.model.uri"):
        fetch_far(order)
