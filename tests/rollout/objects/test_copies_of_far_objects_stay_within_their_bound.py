"""The folder of verified copies: bounded, checked at every use, and never the only place of anything."""

import errno
import os

import objects_kit as kit
import pytest

from rollout.errors import NoSpace, StoreError
from rollout.objects.bulk import name_parts
from rollout.objects.cache import Cache
from rollout.objects.filesystem import FilesystemStore


@pytest.fixture
def far(tmp_path):
    return FilesystemStore(tmp_path / "far")


@pytest.fixture
def service(far):
    with kit.object_service(far) as url:
        yield url


def files(folder):
    return sorted(path.name for path in (folder / "blake3").glob("*/*"))


def test_the_oldest_copies_go_first(far, service, tmp_path):
    names = [far.put(os.urandom(1000)) for _ in range(6)]
    store = kit.served_store(service, tmp_path / "cache", size_bytes_max=3000)
    for name in names:
        store.path(name)
        assert len(files(tmp_path / "cache")) <= 3
    assert files(tmp_path / "cache") == sorted(name[7:] for name in names[-3:])
    assert store.path(names[0]).stat().st_size == 1000


def test_a_copy_spares_the_way(far, service, tmp_path):
    store = kit.served_store(service, tmp_path / "cache")
    digest = far.put(b"weights")
    store.path(digest)
    far.delete(digest)
    assert store.path(digest).read_bytes() == b"weights"
    assert not store.has(digest)


def test_a_damaged_copy_is_fetched_again(far, service, tmp_path):
    store = kit.served_store(service, tmp_path / "cache")
    digest = far.put(b"weights")
    path = store.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"wEights")
    assert store.path(digest).read_bytes() == b"weights"


def test_an_object_larger_than_the_folder_may_be_names_the_field(far, service, tmp_path):
    store = kit.served_store(service, tmp_path / "cache", size_bytes_max=999)
    digest = far.put(os.urandom(1000))
    with pytest.raises(StoreError, match=r"may hold 999: raise spec\.storage\.cacheSize"):
        store.path(digest)


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_under_the_copies_names_object_place_and_fix(
    far, service, tmp_path, monkeypatch, call
):
    store = kit.served_store(service, tmp_path / "cache")
    digest = far.put(b"weights")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(NoSpace, match=rf"{digest} of 7 bytes.*cache.*free space") as caught:
            store.path(digest)
    assert str(tmp_path / "cache") in str(caught.value)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []
    assert store.path(digest).read_bytes() == b"weights"


def test_a_copy_that_cannot_be_kept_does_not_stop_an_upload(far, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "cache")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FilesystemStore, "_publish", full)
    cache.offer(name_parts([b"weights"]), [b"weights"])
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []
