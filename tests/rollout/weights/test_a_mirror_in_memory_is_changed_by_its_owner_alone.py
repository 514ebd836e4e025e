"""Weights that are patched in memory: read by whoever loads them, changed by nobody else, gone with their processes."""

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mirror_memory import flip_in_memory, mirror_size
from safetensors import safe_open

from rollout.errors import NoSpace, StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.weights.digest import digest_tensors, load_weights, save_weights
from rollout.weights.mirror import WeightFiles
from rollout.weights.mirrors.memory import MemoryFile
from rollout.weights.publisher import CHAIN_MAX, Publisher
from rollout_vllm.digest import combine_digests
from rollout_vllm.reading import HashedFile
from rollout_vllm.sending.memory import NAME

MUCH = 1 << 40

HOLDER = """
import sys
from pathlib import Path
from rollout.weights.mirrors.memory import MemoryFile

file = MemoryFile(Path(sys.argv[1]), lambda: 1 << 40)
print(file.path, flush=True)
sys.stdin.read()
"""


def weights(seed=0):
    torch.manual_seed(seed)
    shapes = {"embed": (300, 64), "norm": (64,), "up": (256, 64)}
    return {name: (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}


def step(tensors, seed):
    """The next version: one in a hundred elements is another."""
    torch.manual_seed(seed)
    return {
        name: torch.where(torch.rand(one.shape) < 0.01, torch.randn(one.shape).bfloat16(), one)
        for name, one in tensors.items()
    }


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "version"
    save_weights(weights(), path)
    return path


@pytest.fixture
def file(source):
    made = MemoryFile(source, lambda: MUCH)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(tmp_path / "objects")


def publish(store, count):
    """Digests and objects of versions in their order."""
    publisher, tensors, found = Publisher(store, size_bytes_min=0), weights(), []
    for number in range(count):
        found.append((digest_tensors(tensors), publisher.store(tensors).object))
        tensors = step(tensors, number + 1)
    return found


def in_memory(store, folder, free_bytes=MUCH):
    return WeightFiles(store, folder, in_memory=True, free_bytes=lambda: free_bytes)


def digest_at(path):
    return digest_tensors(load_weights(path))


def engine_digest(path):
    """As the engine's process hashes what it hands to its loader."""
    with HashedFile(path) as opened:
        assert sum(1 for _ in opened.tensors(opened.names)) == len(opened.names)
        return combine_digests(opened.digests())


def open_files():
    """How many files of weights in memory this process has open or mapped."""
    links = [link for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    return len({link.stat().st_ino for link in links if f"/memfd:{NAME}" in str(link.readlink())})


def test_every_version_is_had_bit_for_bit_and_nothing_is_written_into_a_folder(store, tmp_path):
    versions = publish(store, 2 * CHAIN_MAX + 3)
    files = in_memory(store, tmp_path / "mirror")
    for number in (1, 4, 9, 3, 2 * CHAIN_MAX + 2, CHAIN_MAX + 2, 5, 6):
        digest, name = versions[number]
        assert engine_digest(files.path(name)) == digest_at(files.path(name)) == digest
    assert files.num_rebuilt == 0
    assert not (tmp_path / "mirror").exists()
    assert open_files() == 1


def test_a_whole_version_is_read_where_it_is_stored(store, tmp_path):
    (_, name), *_ = publish(store, 1)
    assert in_memory(store, tmp_path / "mirror").path(name) == store.path(name)
    assert open_files() == 0


def test_who_has_the_old_one_open_keeps_it_when_the_mirror_starts_anew(store, tmp_path):
    versions = publish(store, CHAIN_MAX + 3)
    files = in_memory(store, tmp_path / "mirror")
    old = np.memmap(files.path(versions[1][1]), np.uint8, "r")
    before = old[:].copy()
    files.path(versions[CHAIN_MAX + 2][1])
    assert np.array_equal(old, before)


def test_a_bit_that_flips_is_found_and_the_mirror_made_again(store, tmp_path):
    versions = publish(store, 6)
    files = in_memory(store, tmp_path / "mirror")
    files.path(versions[3][1])
    flip_in_memory(os.getpid(), -5)
    assert engine_digest(files.path(versions[4][1])) != versions[4][0]
    files.forget()
    assert engine_digest(files.path(versions[4][1])) == versions[4][0]
    assert files.num_rebuilt == 1


def test_nobody_cuts_it_lengthens_it_or_writes_to_it_by_its_name(file, source):
    for size in (0, 8, source.stat().st_size - 1, source.stat().st_size + 1):
        with pytest.raises(PermissionError):
            os.truncate(file.path, size)
    descriptor = os.open(file.path, os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 100)
        with pytest.raises(PermissionError):
            np.memmap(file.path, np.uint8, "r+")
    finally:
        os.close(descriptor)
    assert file.path.read_bytes() == source.read_bytes()
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_it_is_gone_with_a_process_that_is_killed_and_a_reader_keeps_the_whole_of_it(source):
    command = [sys.executable, "-c", HOLDER, str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        path = Path(one.stdout.readline().strip())
        assert mirror_size(one.pid) == source.stat().st_size
        with path.open("rb") as reader:
            one.send_signal(signal.SIGKILL)
            one.wait()
            assert reader.read() == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        HashedFile(path)


def test_a_name_that_was_left_opens_nothing_or_what_has_another_digest(source, tmp_path):
    file = MemoryFile(source, lambda: MUCH)
    path, digest = file.path, engine_digest(file.path)
    file.close()
    with pytest.raises(FileNotFoundError):
        HashedFile(path)

    save_weights(step(weights(), 1), tmp_path / "other")
    other = MemoryFile(tmp_path / "other", lambda: MUCH)
    assert other.path == path  # the number is given again
    assert engine_digest(path) != digest
    other.close()


def test_without_room_the_weights_are_patched_in_a_folder_and_the_log_says_so(
    store, tmp_path, caplog
):
    versions = publish(store, 3)
    files = in_memory(store, tmp_path / "mirror", free_bytes=10_000)
    with caplog.at_level(logging.WARNING):
        path = files.path(versions[2][1])
    assert path == tmp_path / "mirror" / "weights.safetensors"
    assert digest_at(path) == versions[2][0]
    assert "weights are patched on disk" in caplog.text
    assert "10000 bytes of memory that are free" in caplog.text
    assert open_files() == 0


def test_what_the_system_refuses_is_named_and_leaves_nothing(source):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(NoSpace, match=r"no file of .* bytes in memory: .*File too large"):
            MemoryFile(source, lambda: MUCH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert open_files() == 0


def test_a_source_that_is_cut_on_the_way_is_no_mirror(source, monkeypatch):
    size = source.stat().st_size
    cut = source.with_name("cut")
    cut.write_bytes(source.read_bytes()[: size // 2])
    monkeypatch.setattr("rollout.weights.mirrors.memory._size", lambda _: size)
    with pytest.raises(StoreError, match=f"ends after {size // 2} bytes"):
        MemoryFile(cut, lambda: MUCH)
    assert open_files() == 0


def test_what_is_no_file_of_weights_is_refused_when_it_is_patched(tmp_path):
    (tmp_path / "noise").write_bytes(os.urandom(4096))
    file = MemoryFile(tmp_path / "noise", lambda: MUCH)
    with pytest.raises(StoreError, match="not a whole safetensors file"), file.tensors():
        pass
    file.close()


def test_it_is_opened_as_any_safetensors_file(file):
    with safe_open(file.path, framework="np") as opened:
        assert set(opened.keys()) == {"embed", "norm", "up"}
