"""Weights as a GPU takes them, read without one: the same tensors as safetensors', or a clear refusal."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from rollout.weights.digest import digest_tensors, save_weights
from rollout.weights.host import host_tensors, read_tensors

TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "b": torch.randn(5),
    "c": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 4),
}


def test_the_tensors_are_those_of_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(TENSORS, path)

    found = read_tensors(path, pinned=False)

    assert digest_tensors(found) == digest_tensors(load_file(path)) == digest_tensors(TENSORS)


def test_what_was_read_outlives_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(TENSORS, path)
    found = read_tensors(path, pinned=False)

    path.write_bytes(b"\0" * path.stat().st_size)

    assert digest_tensors(found) == digest_tensors(TENSORS)


def header(**items):
    text = json.dumps(items).encode()
    return struct.pack("<Q", len(text)) + text


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
def test_what_is_no_whole_file_is_refused_by_its_path(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read_tensors(path, pinned=False)


def test_tensors_of_the_host_are_left_where_they_are():
    assert host_tensors(TENSORS)["b"] is TENSORS["b"]
