"""BLAKE3 of tensors on a device gives the host's digests: chunks, trees, windows, alignment, and what happens without Triton."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from blake3_kit import NumpyKernels, content
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.learner.hash_chain import digest_state
from rollout.weights import digest as weights_digest
from rollout.weights.device_hash import digest
from rollout.weights.device_hash.digest import Sizes, digest_on, hashes_right
from rollout.weights.digest import digest_tensors
from rollout.weights.host import STAGING_BYTES, host_pieces
from rollout.weights.publisher import name_whole

CPU = torch.device("cpu")
GROUP = 1 << 16
LENGTHS = (0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3 * 1024 + 1)
POWERS = tuple((1024 << k) + more for k in (2, 5, 6, 7, 8) for more in (-1, 0, 1))


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(digest, "_kernels", lambda: NumpyKernels)
    hashes_right.cache_clear()
    yield
    hashes_right.cache_clear()


@pytest.fixture
def pretended_device(kernels, monkeypatch):
    """All of the CPU is taken for a device."""

    def digests(messages):
        return digest_on(CPU, messages) if hashes_right(CPU) else None

    for module in (
        weights_digest,
        sys.modules[name_whole.__module__],
        sys.modules[digest_state.__module__],
    ):
        monkeypatch.setattr(module, "device_digests", digests)
    return digests


def right(messages):
    return [blake3(content(message)).digest() for message in messages]


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


def test_every_length_has_its_digest_alone(kernels):
    for size in LENGTHS:
        assert digest_on(CPU, [(noise(size),)]) == right([(noise(size),)])


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64])
def test_messages_of_all_lengths_have_their_digests_together_whatever_the_window(kernels, window):
    messages = [(noise(size, size),) for size in LENGTHS + POWERS]

    assert digest_on(CPU, messages, Sizes(window_bytes=window * GROUP, lanes=64)) == right(messages)


def test_a_tree_of_more_groups_than_one_has_places_goes_on_upwards(kernels):
    messages = [(noise(GROUP * 65 + 1),), (b"",), (noise(GROUP * 64),), (noise(GROUP + 5),)]

    assert digest_on(CPU, messages, Sizes(window_bytes=9 * GROUP)) == right(messages)


def test_tensors_of_every_type_and_alignment_are_their_bytes(kernels):
    table = torch.arange(40_000, dtype=torch.float32)
    tensors = [
        torch.tensor(3.0),
        torch.tensor([True, False, True]),
        table.to(torch.bfloat16)[3:20_001],
        torch.arange(7, dtype=torch.uint8),
        table.to(torch.float64)[1:99],
        table.reshape(200, 200).t(),
        torch.empty(0, 5),
    ]
    message = [noise(33), b"header|", *tensors]

    assert digest_on(CPU, [message]) == right([message])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3000), max_size=5), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_how_bytes_are_cut_into_parts_and_windows_enters_no_digest(sizes, window):
    messages = [[noise(n, 7 * i + k) for k, n in enumerate(parts)] for i, parts in enumerate(sizes)]
    kept = digest._kernels
    digest._kernels = lambda: NumpyKernels
    try:
        found = digest_on(CPU, messages, Sizes(window_bytes=window * GROUP, lanes=64))
    finally:
        digest._kernels = kept
    assert found == right(messages)


@pytest.mark.parametrize("place", [0, 1023, GROUP, 3 * GROUP + 17])
def test_one_bit_anywhere_changes_it(kernels, place):
    changed = bytearray(noise(3 * GROUP + 18))
    changed[place] ^= 1

    found = digest_on(CPU, [(noise(3 * GROUP + 18),), (bytes(changed),)])

    assert found[0] != found[1] == blake3(bytes(changed)).digest()


def test_a_version_and_a_state_have_the_hosts_names(pretended_device, monkeypatch):
    tensors = {
        "b": torch.randn(300, 7),
        "a": torch.randn(65).to(torch.bfloat16),
        "step": torch.tensor(4.0),
    }
    found = digest_tensors(tensors), name_whole(tensors), digest_state(tensors, b"random")
    for module in (
        weights_digest,
        sys.modules[name_whole.__module__],
        sys.modules[digest_state.__module__],
    ):
        monkeypatch.setattr(module, "device_digests", lambda _: None)

    assert found == (digest_tensors(tensors), name_whole(tensors), digest_state(tensors, b"random"))


class Wrong(NumpyKernels):
    class chunk_values:  # noqa: N801 - in the place of a function
        def __class_getitem__(cls, grid):
            def call(buffer, out, *args, BLOCK):
                NumpyKernels.chunk_values[grid](buffer, out, *args, BLOCK=BLOCK)
                out[0, 0] += 1

            return call


def missing():
    raise ModuleNotFoundError("No module named 'triton'")


def uncompiled():
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize("kernels_of", [missing, uncompiled, lambda: Wrong])
def test_a_device_that_cannot_hash_or_hashes_wrongly_leaves_it_to_the_host_and_says_so_once(
    kernels_of, monkeypatch, caplog
):
    monkeypatch.setattr(digest, "_kernels", kernels_of)
    hashes_right.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = [hashes_right(CPU), hashes_right(CPU)]
    hashes_right.cache_clear()

    assert found == [False, False]
    assert len(caplog.records) == 1


def test_what_lies_on_the_host_is_the_hosts_to_hash():
    assert digest.device_digests([(b"x", torch.zeros(4))]) is None


def test_pieces_for_the_host_are_the_tensors_bytes():
    tensors = [torch.randn(3, 4).t(), torch.arange(5, dtype=torch.uint8), torch.tensor(1.0)]

    assert b"".join(map(bytes, host_pieces(tensors))) == content(tensors)
    assert STAGING_BYTES <= 64 << 20


INTERPRETED = """
import random, torch
from blake3 import blake3
from blake3_kit import content
from rollout.weights.device_hash.digest import Sizes, digest_on
noise = random.Random(0).randbytes
lengths = (0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3073, 65535, 65536, 65537, 65536 * 65 + 3)
messages = [(noise(n),) for n in lengths]
messages.append((b"odd", torch.randn(9001).to(torch.bfloat16)[1:], torch.tensor(3.0), torch.arange(77, dtype=torch.uint8)))
found = digest_on(torch.device("cpu"), messages, Sizes(window_bytes=65536 * 128, lanes=8192, words=16384))
assert found == [blake3(content(m)).digest() for m in messages], found
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="Triton comes with torch for CUDA only"
)
def test_the_kernels_themselves_give_the_hosts_digests_when_interpreted():
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        check=True,
    )
