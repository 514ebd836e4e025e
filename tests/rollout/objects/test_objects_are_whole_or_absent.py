import errno
import os
import threading
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
from blake3 import blake3
from hypothesis import given

from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore, write_atomically


def name_of(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(tmp_path / "objects")


@given(st.binary(max_size=4096))
def test_what_is_put_is_got_by_its_name(tmp_path_factory, data):
    store = FilesystemStore(tmp_path_factory.mktemp("objects"))
    digest = store.put(data)
    assert digest == name_of(data)
    assert store.path(digest).read_bytes() == data
    assert store.put(data) == digest


def test_a_file_is_stored_and_stays_where_it_was(store, tmp_path):
    source = tmp_path / "weights"
    source.write_bytes(os.urandom(3_000_000))
    digest = store.put_file(source)
    assert digest == name_of(source.read_bytes())
    assert store.path(digest).read_bytes() == source.read_bytes()


def test_a_missing_object_is_told(store):
    digest = name_of(b"never stored")
    assert not store.has(digest)
    with pytest.raises(StoreError, match="is not in"):
        store.path(digest)
    store.delete(digest)


@pytest.mark.parametrize("name", ["", "blake3:", "blake3:../../etc", "sha256:" + "0" * 64])
def test_a_name_that_is_none_is_refused(store, name):
    with pytest.raises(StoreError, match="64 hex"):
        store.path(name)


def test_a_flipped_bit_is_found(store):
    digest = store.put(b"weights" * 1000)
    path = store.path(digest)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[123] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"):
        store.path(digest)
    with pytest.raises(StoreError, match="is damaged"):
        FilesystemStore(path.parents[2]).path(digest)


def test_a_deleted_object_is_gone_and_can_come_back(store):
    digest = store.put(b"weights")
    store.delete(digest)
    assert not store.has(digest)
    assert store.path(store.put(b"weights")).read_bytes() == b"weights"


def test_only_the_first_object_waits_for_more_than_its_own_flush_and_its_folders(
    tmp_path, monkeypatch
):
    flushed: list[Path] = []
    store, flush = FilesystemStore(tmp_path / "objects"), os.fsync

    def see(handle: int) -> None:
        flushed.append(Path(f"/dev/fd/{handle}").readlink())
        flush(handle)

    monkeypatch.setattr(os, "fsync", see)
    digests = [store.put(b"version %d" % number) for number in range(20)]
    places = [store.path(digest).parent for digest in digests]
    assert len(set(places)) > 10
    folders = [path for path in flushed if path.is_dir()]
    assert folders == [tmp_path / "objects" / "blake3", *places]
    assert len(flushed) - len(folders) == len(digests)


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_at_any_point_leaves_nothing(store, tmp_path, monkeypatch, fails):
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if fails == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match="no space left to write"):
            store.put(b"weights")
    assert not store.has(name_of(b"weights"))
    assert [p for p in (tmp_path / "objects").rglob("*") if p.is_file()] == []
    assert store.path(store.put(b"weights")).read_bytes() == b"weights"


def test_writers_of_the_same_object_do_not_meet(store):
    data = os.urandom(200_000)
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(store.put(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(names) == {name_of(data)}
    assert len(names) == 8
    assert store.path(names[0]).read_bytes() == data


def test_remains_of_a_dead_writer_are_swept_and_those_of_a_live_one_are_not(tmp_path):
    root = tmp_path / "objects"
    FilesystemStore(root)
    old, new = root / "staging" / "old", root / "staging" / "new"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    FilesystemStore(root)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "Best.json"
    write_atomically(path, b"one")

    def fails(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(StoreError, match="cannot write"):
            write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert [item.name for item in tmp_path.iterdir()] == ["Best.json"]
