"""A large object is hashed by threads and flushed on the way: the same bytes and name, and no failure is lost."""

import errno
import os

import hypothesis.strategies as st
import pytest
from blake3 import blake3
from hypothesis import given

from rollout.errors import NoSpace
from rollout.objects import bulk
from rollout.objects.filesystem import FilesystemStore

PARTS = [b"head", b"", b"w" * 5000, memoryview(b"m" * 3000), b"tail"]


@pytest.fixture
def large(monkeypatch):
    """Everything is large here, and written in small pieces."""
    monkeypatch.setattr(bulk, "LARGE_BYTES_MIN", 1)
    monkeypatch.setattr(bulk, "PIECE_BYTES", 700)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 50))
def test_parts_of_any_size_are_the_object_that_they_are_joined(tmp_path_factory, parts, piece):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bulk, "LARGE_BYTES_MIN", 1)
        patched.setattr(bulk, "PIECE_BYTES", piece)
        store = FilesystemStore(tmp_path_factory.mktemp("objects"))
        digest = store.put_parts(parts)
    assert digest == f"blake3:{blake3(b''.join(parts)).hexdigest()}"
    assert store.path(digest).read_bytes() == b"".join(parts)


@pytest.mark.usefixtures("large")
def test_a_flush_that_fails_on_the_way_fails_the_put_and_leaves_nothing(tmp_path, monkeypatch):
    store = FilesystemStore(tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(NoSpace, match="free space"):
        store.put_parts(PARTS)
    assert store.names() == []
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.usefixtures("large")
def test_a_copy_of_what_lies_elsewhere_is_not_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    digest = FilesystemStore(tmp_path, durable=False).put_parts(PARTS)
    assert FilesystemStore(tmp_path).path(digest).read_bytes() == b"".join(PARTS)
    assert flushed == []


@pytest.mark.usefixtures("large")
def test_a_process_that_forks_between_two_hashes_hashes_on():
    name = bulk.name_parts(PARTS)
    child = os.fork()
    if child == 0:
        os._exit(0 if bulk.name_parts(PARTS) == name else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
