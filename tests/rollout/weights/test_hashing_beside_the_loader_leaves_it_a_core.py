"""An engine's pause is as long as its loader takes: on two cores the hash that goes on beside it is content with one."""

import os

import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_vllm.digest
from rollout.weights.digest import digest_tensors, save_weights
from rollout_vllm.digest import LARGE_BYTES, combine_digests, digest_tensor
from rollout_vllm.reading import HashedFile

LARGE = torch.arange(LARGE_BYTES // 4, dtype=torch.int32)
TENSORS = {"large": LARGE, "small": torch.arange(5)}


@pytest.fixture
def threads(monkeypatch):
    """How many threads each hasher was given, in order."""
    given: list[int] = []

    class Spied:
        AUTO = blake3.AUTO

        def __new__(cls, *, max_threads=1):
            given.append(max_threads)
            return blake3(max_threads=max_threads)

    monkeypatch.setattr(rollout_vllm.digest, "blake3", Spied)
    return given


@pytest.mark.parametrize(
    ("cores", "beside", "alone"),
    [(1, 1, blake3.AUTO), (2, 1, blake3.AUTO), (4, blake3.AUTO, blake3.AUTO)],
)
def test_two_cores_are_shared_evenly(monkeypatch, tmp_path, threads, cores, beside, alone):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    save_weights(TENSORS, tmp_path / "model.safetensors")

    with HashedFile(tmp_path / "model.safetensors") as file:
        list(file.tensors(["large", "small"]))
        file.digests()
    digest_tensor("large", LARGE)

    assert threads == [beside, 1, alone]


@given(beside=st.booleans(), size=st.integers(-2, 2).map(lambda more: LARGE_BYTES + more))
@settings(max_examples=10)
def test_a_digest_is_the_same_whoever_works_meanwhile(beside, size):
    tensor = torch.arange(size, dtype=torch.int32).to(torch.uint8)
    head = f"t|{tensor.dtype}|{tuple(tensor.shape)}|".encode()
    assert (
        digest_tensor("t", tensor, beside=beside)
        == blake3(head + tensor.numpy().tobytes()).digest()
    )


def test_what_is_handed_over_has_the_digest_of_its_version(tmp_path):
    save_weights(TENSORS, tmp_path / "model.safetensors")
    with HashedFile(tmp_path / "model.safetensors") as file:
        list(file.tensors(file.names))
        assert combine_digests(file.digests()) == digest_tensors(TENSORS)
