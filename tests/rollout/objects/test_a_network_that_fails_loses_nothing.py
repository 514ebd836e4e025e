"""An S3 server behind a proxy that misbehaves: a correct result, or an error that names object, place and fix."""

import logging
import os
import re
import threading

import objects_kit as kit
import pytest
from blake3 import blake3

from rollout.errors import StoreError
from rollout.objects import remote, s3
from rollout.objects.source import PartsSource

pytestmark = pytest.mark.process

DATA = os.urandom(300_000)
NAME = f"blake3:{blake3(DATA).hexdigest()}"


@pytest.fixture(scope="module")
def proxy(s3_endpoint):
    with kit.proxy_before(s3_endpoint) as made:
        yield made


@pytest.fixture
def store(proxy, bucket, tmp_path):
    proxy.faults.clear()
    proxy.seen.clear()
    return kit.s3_store(proxy.url, bucket, tmp_path / "cache")


@pytest.fixture
def fresh(proxy, bucket, tmp_path):
    """Another process's view: nothing cached."""
    return kit.s3_store(proxy.url, bucket, tmp_path / "other")


@pytest.fixture
def hasty(proxy, bucket, tmp_path):
    """Another process's view, with no patience for slow answers."""
    return kit.s3_store(proxy.url, bucket, tmp_path / "hasty", kit.HASTY)


ERRORS = [(500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable"), (429, "TooMany")]


@pytest.mark.parametrize(("status", "code"), ERRORS)
@pytest.mark.parametrize("method", ["HEAD", "PUT", "GET", "DELETE"])
def test_a_server_in_trouble_is_asked_again(store, fresh, proxy, method, status, code):
    proxy.next(kit.says(status, code), method, times=2)
    assert store.put(DATA) == NAME
    assert fresh.path(NAME).read_bytes() == DATA
    store.delete(NAME)
    assert not fresh.has(NAME)
    assert proxy.faults == []


@pytest.mark.parametrize("fault", [kit.cut, kit.truncated, kit.wrong_bytes])
def test_an_answer_that_breaks_is_gone_on_with_or_fetched_again(store, fresh, proxy, fault):
    store.put(DATA)
    proxy.next(fault, "GET")
    assert fresh.path(NAME).read_bytes() == DATA
    assert proxy.faults == []


def test_an_answer_that_is_slow_is_left_and_gone_on_with(store, hasty, proxy):
    store.put(DATA)
    proxy.next(kit.slow, "GET")
    assert hasty.path(NAME).read_bytes() == DATA
    assert sum(method == "GET" for method, _ in proxy.seen) > 1


@pytest.mark.parametrize("method", ["HEAD", "PUT"])
def test_a_connection_that_breaks_while_storing_is_made_again(store, fresh, proxy, method):
    proxy.next(kit.cut, method, times=2)
    assert store.put(DATA) == NAME
    assert fresh.path(NAME).read_bytes() == DATA


def test_a_put_whose_answer_is_lost_is_settled_by_a_look(store, fresh, proxy):
    proxy.next(kit.answer_lost, "PUT")
    assert store.put(DATA) == NAME
    methods = [method for method, _ in proxy.seen]
    assert methods == ["HEAD", "PUT", "HEAD"]
    assert fresh.path(NAME).read_bytes() == DATA


def test_a_put_that_meets_another_writers_object_leaves_it(store, fresh, proxy):
    def meanwhile(asked, pass_on):
        fresh.put(DATA)
        return pass_on()

    proxy.next(meanwhile, "PUT")
    assert store.put(DATA) == NAME
    assert fresh.path(NAME).read_bytes() == DATA


def test_a_server_without_conditional_writes_is_written_to_all_the_same(store, fresh, proxy):
    proxy.next(kit.says(501, "NotImplemented"), "PUT")
    assert store.put(DATA) == NAME
    assert fresh.path(NAME).read_bytes() == DATA


@pytest.mark.parametrize(
    ("method", "act"),
    [("HEAD", "find"), ("PUT", "store"), ("GET", "read"), ("DELETE", "delete")],
)
def test_trouble_that_does_not_end_names_object_place_reason_and_fix(
    store, fresh, proxy, method, act
):
    if method in {"GET", "DELETE"}:
        store.put(DATA)
    proxy.next(kit.says(503, "SlowDown"), method, times=50)
    with pytest.raises(StoreError) as caught:
        {
            "HEAD": lambda: fresh.has(NAME),
            "PUT": lambda: store.put(DATA),
            "GET": lambda: fresh.path(NAME),
            "DELETE": lambda: store.delete(NAME),
        }[method]()
    said = str(caught.value)
    assert f"cannot {act} object {NAME} in s3://" in said
    assert "4 tries failed" in said
    assert "SlowDown" in said or method == "HEAD"
    assert "resume the run" in said


def test_bytes_that_are_always_wrong_are_called_damage(store, fresh, proxy):
    store.put(DATA)
    proxy.next(kit.wrong_bytes, "GET", times=remote.FETCHES_MAX)
    with pytest.raises(StoreError, match=rf"{NAME} in s3://.*is damaged: fetched 3 times"):
        fresh.path(NAME)
    assert fresh.path(NAME).read_bytes() == DATA


def test_a_server_that_is_always_slow_is_given_up(store, hasty, proxy):
    digest = store.put(DATA * 8)
    proxy.next(kit.slow, "GET", times=50)
    with pytest.raises(StoreError, match="slow: "):
        hasty.path(digest)


def test_an_object_deleted_while_it_is_read_is_told(store, fresh, proxy):
    store.put(DATA)

    def deleted_meanwhile(asked, pass_on):
        answer = kit.truncated(asked, pass_on)
        store.delete(NAME)
        return answer

    proxy.next(deleted_meanwhile, "GET")
    with pytest.raises(StoreError, match=rf"{NAME} is not in s3://.*deleted"):
        fresh.path(NAME)


def test_nothing_is_visible_of_a_write_that_ends_in_the_middle(store, proxy, s3_endpoint, bucket):
    proxy.next(kit.says(500, "InternalError"), "PUT", times=50)
    with pytest.raises(StoreError):
        store.put(DATA)
    assert kit.s3_client(s3_endpoint).list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_missing_bucket_is_named_with_its_fix(proxy, tmp_path):
    proxy.faults.clear()
    store = kit.s3_store(proxy.url, "nobody-made-me", tmp_path)
    with pytest.raises(StoreError, match=r"s3://nobody-made-me.*NoSuchBucket.*make the bucket"):
        store.put(DATA)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_refused_credentials_are_not_tried_again_and_never_told(store, proxy, code, caplog):
    caplog.set_level(logging.INFO)
    proxy.next(kit.says(403, code), "PUT", times=5)
    with pytest.raises(StoreError, match=rf"{code}.*see the credentials") as caught:
        store.put(DATA)
    assert [method for method, _ in proxy.seen] == ["HEAD", "PUT"]
    told = f"{caught.value} {caught.value.__cause__} {caplog.text}"
    assert not re.search(r"secret|AKIA", told)


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (400, "ExpiredToken", "see the credentials"),
        (403, "RequestTimeTooSkewed", "set this machine's clock"),
    ],
)
def test_credentials_that_ran_out_and_a_clock_that_is_wrong_are_named(
    store, proxy, status, code, fix
):
    proxy.next(kit.says(status, code), "PUT", times=5)
    with pytest.raises(StoreError, match=rf"{code}.*{fix}"):
        store.put(DATA)
    assert [method for method, _ in proxy.seen] == ["HEAD", "PUT"]


def test_without_credentials_the_error_says_how_to_give_them(proxy, bucket, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = kit.s3_store(proxy.url, bucket, tmp_path)
    with pytest.raises(StoreError, match=r"no credentials.*AWS_PROFILE"):
        store.put(DATA)


@pytest.fixture
def in_parts(monkeypatch):
    """Large objects, made small: parts of 5 MiB are the least that S3 takes."""
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 6 << 20)
    monkeypatch.setattr(remote, "RANGE_BYTES", 3 << 20)
    data = os.urandom(12 << 20)
    return data, f"blake3:{blake3(data).hexdigest()}"


def test_a_large_object_goes_up_in_parts_and_comes_down_in_ranges(store, fresh, proxy, in_parts):
    data, name = in_parts
    proxy.next(kit.says(500, "InternalError"), "PUT", times=2)
    proxy.next(kit.truncated, "GET", times=2)
    proxy.next(kit.cut, "GET")
    assert store.put_parts([data[:1000], data[1000:]]) == name
    assert fresh.path(name).read_bytes() == data
    assert sum(method == "POST" for method, _ in proxy.seen) == 2
    assert sum(method == "PUT" for method, _ in proxy.seen) == 3 + 2
    assert sum(method == "GET" for method, _ in proxy.seen) == 4 + 3


def test_a_completion_whose_answer_is_lost_is_settled_by_a_look(store, fresh, proxy, in_parts):
    data, name = in_parts

    def lost_completion(asked, pass_on):
        return kit.answer_lost(asked, pass_on) if "uploads" not in asked.path else pass_on()

    proxy.next(lost_completion, "POST", times=2)
    assert store.put(data) == name
    assert fresh.path(name).read_bytes() == data
    assert sum(method == "PUT" for method, _ in proxy.seen) == 3


def test_an_upload_in_parts_that_fails_leaves_nothing(store, proxy, in_parts, s3_endpoint, bucket):
    data, _ = in_parts
    proxy.next(kit.says(500, "InternalError"), "PUT", times=500)
    with pytest.raises(StoreError, match=r"cannot store part \d of"):
        store.put(data)
    client = kit.s3_client(s3_endpoint)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_an_upload_takes_memory_for_a_few_parts_only(store, in_parts, monkeypatch):
    data, name = in_parts
    held, most, lock = 0, 0, threading.Lock()
    send = s3.S3Remote._send

    def counted(self, at_upload, number, part):
        nonlocal held, most
        with lock:
            held += len(part)
            most = max(most, held)
        try:
            return send(self, at_upload, number, part)
        finally:
            with lock:
                held -= len(part)

    monkeypatch.setattr(s3, "PARTS_AT_ONCE", 1)
    monkeypatch.setattr(s3.S3Remote, "_send", counted)
    assert store.put(data) == name
    assert most == 5 << 20


def test_parts_are_read_from_anywhere():
    source = PartsSource([b"abc", b"", b"defg", b"h"])
    with source.open() as reader:
        assert reader.read() == b"abcdefgh"
        reader.seek(2)
        assert reader.read(4) == b"cdef"
        assert (reader.seek(0, 2), reader.read()) == (8, b"")
    assert source.size_bytes == 8
