"""A CUDA device's digests are the host library's: every length, type, alignment and window; its memory is bounded."""

from __future__ import annotations

import random

import pytest
import torch
from blake3 import blake3
from blake3_kit import content

from rollout.learner import hash_chain
from rollout.learner.hash_chain import digest_state
from rollout.weights.device_hash.digest import Sizes, device_digests, digest_on, hashes_right
from rollout.weights.digest import digest_tensors
from rollout.weights.host import host_tensors
from rollout.weights.publisher import name_whole

DEVICE = torch.device("cuda", 0)
GROUP = 1 << 16
LENGTHS = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3 * 1024 + 1]
LENGTHS += [(1024 << k) + more for k in range(2, 13) for more in (-1, 0, 1)]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]


def on_device(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[: len(data)].to(
        DEVICE
    )


def right(messages):
    return [blake3(content(message)).digest() for message in messages]


def test_this_device_hashes():
    assert hashes_right(DEVICE)


@pytest.mark.parametrize("window", [1, 5, 64, 4096])
def test_messages_of_all_lengths_have_their_digests(window):
    drawn = random.Random(window)
    sizes = [*LENGTHS, *(drawn.randrange(8 << 20) for _ in range(6))]
    messages = [(on_device(drawn.randbytes(size)),) for size in sizes]

    assert digest_on(DEVICE, messages, Sizes(window_bytes=window * GROUP)) == right(messages)


def test_tensors_of_every_type_and_alignment_are_their_bytes():
    table = torch.randn(400, 333, device=DEVICE) * 50
    tensors = [table.to(dtype).reshape(-1)[odd:] for odd in range(4) for dtype in TYPES]
    tensors += [
        torch.tensor(3.0, device=DEVICE),
        table.t(),
        table[:0],
        torch.tensor(7),
        torch.ones(9),
    ]
    for before in (b"", b"a", b"ab", b"abc", b"x" * 33):
        message = [before, *tensors]
        assert digest_on(DEVICE, [message], Sizes(window_bytes=3 * GROUP)) == right([message])


def test_one_bit_changes_it():
    tensor = on_device(random.Random(0).randbytes(5_000_003))
    before = digest_on(DEVICE, [(tensor,)])
    for place in (0, 1023, 2_500_001, 5_000_002):
        tensor[place] ^= 4
        assert digest_on(DEVICE, [(tensor,)]) == right([(tensor,)]) != before
        tensor[place] ^= 4


def test_a_version_and_a_state_have_the_hosts_names_also_in_exact(exact):
    tensors = {f"p{i}": torch.randn(i * 1000 + 1, 3, device=DEVICE) for i in range(40)}
    tensors |= {f"h{i}": torch.randn(777, i + 1, device=DEVICE).bfloat16() for i in range(40)}
    host = host_tensors(tensors)

    assert not any(one.is_cuda for one in host.values())
    assert device_digests([tuple(tensors.values())]) is not None
    assert digest_tensors(tensors) == digest_tensors(host)
    assert name_whole(tensors) == name_whole(host)
    assert digest_state(tensors, b"r" * 32) == digest_state(host, b"r" * 32)


def test_where_the_device_does_not_hash_the_host_gives_the_same_digest(monkeypatch):
    tensors = {f"p{i}": torch.randn(3_000_001, device=DEVICE) for i in range(8)}
    found = digest_state(tensors, b"")
    monkeypatch.setattr(hash_chain, "device_digests", lambda _: None)

    assert digest_state(tensors, b"") == found


def test_memory_beside_the_tensors_is_a_buffer_and_a_little():
    tensor = torch.zeros(3 << 30, dtype=torch.uint8, device=DEVICE)
    hashes_right(DEVICE)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    device_digests([(tensor,)])

    assert torch.cuda.max_memory_allocated() - before <= 300 << 20
    assert torch.cuda.memory_allocated() == before
