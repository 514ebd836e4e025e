"""A model folder is packed into one object and unpacked elsewhere; equal models are one object."""

import pytest

from rollout.errors import StoreError
from rollout.models.files import digest_model
from rollout.models.packed import PackedModel, pack, parse_packed, unpack
from rollout.objects.filesystem import FilesystemStore

DIGEST = "blake3:" + "ab" * 32


def build_model(folder, weights=b"\x01" * 1000):
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "empty.txt").write_text("")
    (folder / "notes.md").write_text("no part of the model")
    return folder


def test_what_is_unpacked_is_what_was_packed(tmp_path):
    folder, target = build_model(tmp_path / "model"), tmp_path / "again"
    store = FilesystemStore(tmp_path / "store")
    digest = store.put_parts(pack(folder))
    unpack(store.path(digest), target)
    assert digest_model(target) == digest_model(folder)
    assert not (target / "notes.md").exists()


def test_equal_models_are_one_object_wherever_they_were_packed(tmp_path):
    store = FilesystemStore(tmp_path / "store")
    first = store.put_parts(pack(build_model(tmp_path / "one")))
    assert store.put_parts(pack(build_model(tmp_path / "two"))) == first
    assert store.put_parts(pack(build_model(tmp_path / "three", b"\x02"))) != first


@pytest.mark.parametrize(
    "place", ["s3://bucket/runs/uid-1", "pvc://ledger-1-sft-coordinator-0/objects"]
)
def test_its_uri_says_where_and_what(place):
    packed = PackedModel(place=place, digest=DIGEST)
    assert parse_packed(str(packed)) == packed


@pytest.mark.parametrize("uri", ["hf://a/b", "file:///models/blake3", "rollout://tiny-adder", None])
def test_other_models_are_no_packed_ones(uri):
    assert parse_packed(uri) is None


def test_an_object_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"something else, long enough" * 100)
    with pytest.raises(StoreError, match="cannot be unpacked as a model"):
        unpack(path, tmp_path / "folder")
