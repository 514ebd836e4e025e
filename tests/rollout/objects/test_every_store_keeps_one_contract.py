"""What any object store promises, held against each of them: a folder, the coordinator's, an S3 bucket."""

import os
import threading

import hypothesis.strategies as st
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from objects_kit import object_service, served_store

from rollout.errors import StoreError
from rollout.objects.bulk import name_parts
from rollout.objects.coordinator_remote import ServedRemote
from rollout.objects.filesystem import FilesystemStore

PARTS = st.lists(st.binary(max_size=300), max_size=6)


def name_of(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(PARTS)
def test_what_is_put_is_got_by_its_name_by_anyone(place, parts):
    store, data = place.open(), b"".join(parts)
    digest = store.put_parts(parts)
    assert digest == name_of(data) == name_parts(parts)
    for reader in (store, place.open()):
        assert reader.has(digest)
        assert reader.path(digest).read_bytes() == data
        assert reader.size(digest) == len(data)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from("pdgh"), st.integers(0, 3)), max_size=12))
def test_any_history_is_that_of_a_set_of_objects(place, history):
    store, present = place.open(), set()
    bodies = [bytes([i]) * (i * 1000) for i in range(4)]
    names = [name_of(body) for body in bodies]
    for name in names:
        store.delete(name)
    for act, i in history:
        if act == "p":
            assert store.put(bodies[i]) == names[i]
            present.add(i)
        elif act == "d":
            store.delete(names[i])
            present.discard(i)
        elif act == "h":
            assert store.has(names[i]) == (i in present)
        elif i in present:
            assert store.path(names[i]).read_bytes() == bodies[i]
        else:
            with pytest.raises(StoreError, match="is not in"):
                store.path(names[i])
    assert sorted(place.list()) == sorted(names[i][7:] for i in present)
    if not isinstance(getattr(store, "_remote", None), ServedRemote):
        assert sorted(store.names()) == sorted(names[i] for i in present)


def test_a_coordinator_lists_its_objects_to_nobody(tmp_path):
    with (
        object_service(FilesystemStore(tmp_path / "objects")) as url,
        pytest.raises(StoreError, match="does not list"),
    ):
        served_store(url, tmp_path / "cache").names()


def test_a_file_is_stored_and_stays_where_it_was(place, store, tmp_path):
    source = tmp_path / "weights"
    source.write_bytes(os.urandom(3_000_000))
    digest = store.put_file(source)
    assert digest == name_of(source.read_bytes())
    assert place.open().path(digest).read_bytes() == source.read_bytes()
    assert store.put_file(source) == digest
    assert place.list() == [digest[7:]]


def test_parts_may_look_into_memory(store):
    array = memoryview(os.urandom(4096))
    digest = store.put_parts([b"head", array[5:90], b"", bytearray(b"tail")])
    assert store.path(digest).read_bytes() == b"head" + bytes(array[5:90]) + b"tail"


def test_writers_of_the_same_object_do_not_meet(place):
    data, names = os.urandom(200_000), []
    writers = [place.open() for _ in range(6)]
    threads = [threading.Thread(target=lambda s=s: names.append(s.put(data))) for s in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [name_of(data)] * 6
    assert place.open().path(names[0]).read_bytes() == data
    assert place.list() == [names[0][7:]]


def test_damage_is_found_when_it_is_read(place, store):
    data = os.urandom(10_000)
    digest = store.put(data)
    place.damage(digest, data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    with pytest.raises(StoreError, match=r"is damaged|damaged: its file") as caught:
        place.open().path(digest)
    assert digest in str(caught.value)
    assert "delete" in str(caught.value)


def test_an_object_cut_short_is_damage(place, store):
    digest = store.put(b"weights" * 1000)
    place.damage(digest, b"weights" * 500)
    with pytest.raises(StoreError, match="is damaged"):
        place.open().path(digest)


def test_a_deleted_object_is_missing_to_everyone_and_may_come_back(place, store):
    other = place.open()
    digest = store.put(b"weights")
    assert other.path(digest).read_bytes() == b"weights"
    store.delete(digest)
    store.delete(digest)
    assert not other.has(digest)
    with pytest.raises(StoreError, match=rf"{digest} is not in"):
        place.open().path(digest)
    assert store.put(b"weights") == digest
    assert place.open().path(digest).read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["", "blake3:", "blake3:../../etc", "sha256:" + "0" * 64])
def test_a_name_that_is_none_is_refused(store, name):
    for ask in (store.path, store.has, store.delete):
        with pytest.raises(StoreError, match="64 hex"):
            ask(name)
