"""Uploads in sessions to Google Cloud Storage: gone on with where the server says that they ended, whole or not there."""

import os

import objects_kit as kit
import pytest

from rollout.errors import StoreError
from rollout.objects import gcs

DATA = os.urandom((1 << 20) + 12345)


@pytest.fixture(autouse=True)
def in_chunks(monkeypatch):
    """Large objects, made small: chunks of 256 KiB are the least that the server takes."""
    monkeypatch.setattr(gcs, "PART_BYTES", 256 << 10)


@pytest.fixture
def proxy(google):
    with kit.proxy_before(google.url) as made:
        yield made
    google.persists = None
    google.sessions.clear()


@pytest.fixture
def stores(proxy, google_bucket, tmp_path):
    """The store, and another process's view: nothing cached."""
    uri = f"gs://{google_bucket}/runs/one"
    return [kit.bucket_store(uri, proxy.url, tmp_path / name) for name in ("one", "other")]


def chunks(proxy):
    return sum(method == "PUT" for method, _ in proxy.seen)


def test_an_object_goes_up_in_one_session_of_chunks(stores, proxy):
    store, fresh = stores
    digest = store.put(DATA)
    assert fresh.path(digest).read_bytes() == DATA
    assert sum(method == "POST" for method, _ in proxy.seen) == 1
    assert chunks(proxy) == 5


@pytest.mark.parametrize(
    "fault", [kit.cut, kit.answer_lost, kit.says(503, "x"), kit.says(429, "x")]
)
@pytest.mark.parametrize("at", range(5))
def test_a_chunk_that_fails_is_gone_on_with(stores, proxy, fault, at):
    store, fresh = stores
    proxy.next(lambda asked, pass_on: pass_on(), "PUT", times=at)
    proxy.next(fault, "PUT")
    digest = store.put(DATA)
    assert fresh.path(digest).read_bytes() == DATA
    assert sum(method == "POST" for method, _ in proxy.seen) == 1
    assert chunks(proxy) <= 7


def test_a_server_that_keeps_half_of_a_chunk_is_sent_the_rest(stores, google, proxy):
    google.persists = 100_000
    store, fresh = stores
    digest = store.put(DATA)
    assert fresh.path(digest).read_bytes() == DATA


def test_a_session_that_the_server_has_forgotten_is_begun_anew(stores, google, proxy):
    store, fresh = stores

    def forget(asked, pass_on):
        google.sessions.clear()
        return pass_on()

    proxy.next(lambda asked, pass_on: pass_on(), "PUT", times=2)
    proxy.next(forget, "PUT")
    digest = store.put(DATA)
    assert fresh.path(digest).read_bytes() == DATA
    assert sum(method == "POST" for method, _ in proxy.seen) == 2


def test_another_writers_object_is_left(stores, google, google_bucket, proxy):
    store, fresh = stores

    def meanwhile(asked, pass_on):
        fresh.put(DATA)
        return pass_on()

    proxy.next(meanwhile, "POST")
    store.put(DATA)
    assert len(google.names(google_bucket)) == 1


def test_bytes_that_were_damaged_on_the_way_are_never_an_object(
    stores, google, google_bucket, proxy
):
    def damaged(asked, pass_on):
        asked.body = bytes([asked.body[0] ^ 1]) + asked.body[1:]
        return pass_on()

    proxy.next(damaged, "PUT", times=5)
    store, _ = stores
    with pytest.raises(StoreError, match="CRC32C"):
        store.put(DATA)
    assert google.names(google_bucket) == []


def test_an_upload_that_is_given_up_leaves_nothing(stores, google, google_bucket, proxy):
    proxy.next(kit.says(503, "Unavailable"), "PUT", times=50)
    store, _ = stores
    with pytest.raises(StoreError, match=r"cannot store bytes from 0 of object runs/one/blake3"):
        store.put(DATA)
    assert google.names(google_bucket) == []
