"""The coordinator's object endpoints: roles, bounds, streams that break."""

import http.client
import os
import time
from urllib.parse import urlsplit

import httpx
import objects_kit as kit
import pytest
from blake3 import blake3

from rollout.coordinator import objects
from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore

DATA = os.urandom(3_000_000)
NAME = blake3(DATA).hexdigest()


@pytest.fixture
def far(tmp_path):
    return FilesystemStore(tmp_path / "far")


@pytest.fixture
def url(far):
    with kit.object_service(far) as address:
        yield address


def ask(url, method, token="learner", name=NAME, **more):
    headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
    return httpx.request(method, f"{url}/v1/objects/{name}", headers=headers, **more)


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "DELETE"])
def test_nobody_comes_in_without_a_token(url, method):
    assert httpx.request(method, f"{url}/v1/objects/{NAME}").status_code == 401


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_actor_may_only_read(far, url, method, tmp_path):
    far.put(DATA)
    assert ask(url, method, token="actor").status_code == 403
    reader = kit.served_store(url, tmp_path / "cache", token="actor")
    assert reader.path(f"blake3:{NAME}").read_bytes() == DATA
    with pytest.raises(StoreError, match="only the learner writes"):
        reader.put(b"other")


def test_a_range_is_answered_by_its_bytes(far, url):
    far.put(DATA)
    answer = ask(url, "GET", headers={"Range": "bytes=1000-1999"})
    assert (answer.status_code, answer.content) == (206, DATA[1000:2000])


def test_bytes_that_are_not_what_their_name_says_are_refused(far, url, tmp_path):
    assert ask(url, "PUT", content=DATA[:-1] + b"x").status_code == 422
    assert not far.has(f"blake3:{NAME}")
    assert list((tmp_path / "far" / "staging").iterdir()) == []


def test_more_than_the_bound_is_refused(url, monkeypatch):
    monkeypatch.setattr(objects, "OBJECT_BYTES_MAX", 1000)
    assert ask(url, "PUT", content=DATA[:1001]).status_code == 413


def test_too_many_uploads_are_told_to_come_back(url, monkeypatch):
    monkeypatch.setattr(objects, "TRANSFERS_MAX", 0)
    assert ask(url, "PUT", content=DATA).status_code == 503


def test_a_name_that_is_none_is_not_found(url):
    assert ask(url, "GET", name="../../etc/passwd").status_code == 404


def test_an_upload_that_ends_in_the_middle_leaves_nothing(far, url, tmp_path):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.putrequest("PUT", f"/v1/objects/{NAME}")
    connection.putheader("Authorization", "Bearer learner")
    connection.putheader("Content-Length", str(len(DATA)))
    connection.endheaders()
    connection.send(DATA[: len(DATA) // 2])
    connection.close()
    staging = tmp_path / "far" / "staging"
    deadline = time.monotonic() + 10
    while list(staging.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(staging.iterdir()) == []
    assert not far.has(f"blake3:{NAME}")
