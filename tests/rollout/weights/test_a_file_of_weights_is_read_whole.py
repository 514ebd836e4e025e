"""Weights as a GPU and as a CPU take them, read without one: the same tensors as safetensors', or a clear refusal."""

from __future__ import annotations

import json
import struct
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from rollout.weights.digest import (
    APART_BYTES_MIN,
    TensorDigests,
    digest_tensors,
    load_weights,
    save_weights,
)
from rollout.weights.host import host_tensors, read_tensors
from rollout_vllm.digest import combine_digests, digest_tensor

TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "b": torch.randn(5),
    "c": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]),
    "small": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
}

both_ways = pytest.mark.parametrize(
    "read", [partial(read_tensors, pinned=False), load_weights], ids=["in one piece", "apart"]
)


@both_ways
def test_the_tensors_are_those_of_safetensors(tmp_path, read):
    path = tmp_path / "model.safetensors"
    save_weights(TENSORS, path)

    found = read(path)

    assert digest_tensors(found) == digest_tensors(load_file(path)) == digest_tensors(TENSORS)


@both_ways
def test_what_was_read_outlives_the_file(tmp_path, read):
    path = tmp_path / "model.safetensors"
    save_weights(TENSORS, path)
    found = read(path)

    path.write_bytes(b"\0" * path.stat().st_size)

    assert digest_tensors(found) == digest_tensors(TENSORS)


def header(**items):
    text = json.dumps(items).encode()
    return struct.pack("<Q", len(text)) + text


@both_ways
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 60) + b"{}",
        header(a={"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}) + b"\0" * 12,
        header(a={"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}) + b"\0" * 4,
        header(a={"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}) + b"\0" * 16,
        header(a={"dtype": "F32", "shape": [1]}) + b"\0" * 4,
        header(a=[1]) + b"\0" * 4,
    ],
)
def test_what_is_no_whole_file_is_refused_by_its_path(tmp_path, content, read):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read(path)


def test_tensors_that_are_read_apart_begin_where_those_that_are_made_do(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(TENSORS, path)

    found = load_weights(path)

    assert all(one.data_ptr() % 64 == 0 for one in found.values())
    assert len({one.untyped_storage().data_ptr() for one in found.values() if one.numel()}) == 5


def test_tensors_of_the_host_are_left_where_they_are():
    assert host_tensors(TENSORS)["b"] is TENSORS["b"]


def test_a_digest_is_the_same_whether_tensors_are_hashed_beside_their_reading_or_one_by_one(
    tmp_path,
):
    sizes = (APART_BYTES_MIN // 4 - 1, APART_BYTES_MIN // 4, 3 * APART_BYTES_MIN + 5)
    tensors = {f"layer.{n}": torch.randn(size) for n, size in enumerate(sizes)} | TENSORS
    path = tmp_path / "model.safetensors"
    save_weights(tensors, path)

    with TensorDigests() as digests:
        found = load_weights(path, digests.add)
        digest = digests.combined()

    assert found.keys() == tensors.keys()
    assert digest == combine_digests({name: digest_tensor(name, tensors[name]) for name in tensors})
    assert digest == digest_tensors(tensors)
