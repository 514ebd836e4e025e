"""Without torch: the digest of a tensor, its cast, and what is no header of a safetensors file."""

import math

import numpy as np
import pytest
import torch

from rollout.errors import StoreError
from rollout.weights.numbers import TensorInfo, read_tensors, to_bits, to_floats
from rollout.weights.shards import Outgoing, combine_raw, digest_raw, plan_shards
from rollout_vllm.digest import combine_digests, digest_tensor

FORMATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NUMBERS = [0.0, -0.0, 1.0, 1.0039062, 65504.0, 3.4e38, 1e-40, math.inf, -math.inf]


def raw(tensor):
    size = {4: np.uint32, 2: np.uint16}[tensor.element_size()]
    return tensor.reshape(-1).view(torch.uint8).numpy().view(size)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 1), ()])
@pytest.mark.parametrize("name", FORMATS)
def test_a_digest_is_that_of_the_engines(name, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(FORMATS[name])
    info = TensorInfo(name="w", dtype=name, shape=shape)
    assert digest_raw(info, raw(tensor)) == digest_tensor("w", tensor)


def test_a_version_is_digested_by_name():
    digests = {"b": b"1" * 32, "a": b"2" * 32}
    assert combine_raw(digests) == combine_digests(digests)


@pytest.mark.parametrize("name", ["F32", "BF16"])
def test_numbers_are_rounded_as_torch_rounds_them(name):
    drawn = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    values = torch.cat([torch.tensor(NUMBERS), drawn])
    info = TensorInfo(name="w", dtype=name, shape=tuple(values.shape))

    found = to_bits(values.numpy(), info)

    cast = values.to(FORMATS[name])
    assert found.tolist() == raw(cast).tolist()
    assert torch.equal(torch.from_numpy(to_floats(found, info).copy()), cast.float())


def test_what_is_no_number_stays_none():
    info = TensorInfo(name="w", dtype="BF16", shape=(2,))
    values = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(to_floats(to_bits(values, info), info)).all()


@pytest.mark.parametrize("text", [b"", b"\xff" * 8, b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_refused(tmp_path, text):
    (tmp_path / "x.safetensors").write_bytes(text)
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_tensor_larger_than_a_shard_has_one_of_its_own():
    def tensor(name, size):
        info = TensorInfo(name=name, dtype="F32", shape=(size,))
        return Outgoing(info=info, read=lambda: np.zeros(size, np.uint32))

    shards = plan_shards([tensor("a", 1), tensor("b", 9), tensor("c", 2), tensor("d", 3)], 20)
    assert [[one.info.name for one in shard] for shard in shards] == [["a"], ["b"], ["c", "d"]]
