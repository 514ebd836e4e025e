"""Weights as a GPU and as a CPU take them, read without one: the same tensors as safetensors', or a clear refusal."""

from __future__ import annotations

import json
import struct
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from rollout.weights.digest import digest_tensors, save_weights
from rollout.weights.host import host_tensors, read_apart, read_tensors

TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "b": torch.randn(5),
    "c": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]),
    "small": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
}

both_ways = pytest.mark.parametrize(
    "read", [partial(read_tensors, pinned=False), read_apart], ids=["in one piece", "apart"]
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

    found = read_apart(path)

    assert all(one.data_ptr() % 64 == 0 for one in found.values())
    assert len({one.untyped_storage().data_ptr() for one in found.values() if one.numel()}) == 5


def test_tensors_of_the_host_are_left_where_they_are():
    assert host_tensors(TENSORS)["b"] is TENSORS["b"]
