"""The coordinator's object endpoints: roles, bounds, streams that break."""

import errno
import http.client
import os
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import objects_kit as kit
import pytest
from blake3 import blake3
from ruamel.yaml import YAML

from rollout.coordinator.server import objects
from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.opening import open_store
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

sys.path.append(str(Path(__file__).parents[1] / "coordinator"))

from coordinator_kit import Bench, HttpServer

MANIFESTS = Path(__file__).parents[2] / "rollout_api" / "manifests" / "good"

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
    answer = ask(url, "PUT", content=DATA)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


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
    deadline = time.monotonic() + 60
    while list(staging.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(staging.iterdir()) == []
    assert not far.has(f"blake3:{NAME}")


def test_a_full_disk_of_the_coordinator_is_told_with_its_fix(url, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = kit.served_store(url, tmp_path / "cache")
    with pytest.raises(StoreError, match=rf"{NAME} in the coordinator.*507.*larger volume"):
        store.put(DATA)


def worker_config(folder, url):
    spec = YAML(typ="safe").load(MANIFESTS / "objects-in-a-folder.yaml")["spec"]
    del spec["storage"]
    return WorkerConfig(
        run=RunIdentity(name="served", uid="uid-1"),
        spec_digest="blake3:" + "0" * 64,
        spec=RolloutRunSpec.model_validate(spec),
        resolved=ResolvedRun(
            model_path=str(folder),
            model_digest="blake3:" + "1" * 64,
            dtype="Float32",
            prompt_tokens_max=16,
        ),
        layout=Layout(
            run_dir=str(folder),
            coordinator_url=url,
            token_file=str(folder / "token"),
            objects_dir=str(folder / "copies"),
            objects_served=True,
            ledger_path=str(folder / "ledger.db"),
        ),
    )


def test_the_processes_of_a_run_reach_each_others_objects_through_its_coordinator(tmp_path):
    (tmp_path / "token").write_text("secret")
    server = HttpServer(bench := Bench(tmp_path), "secret")
    try:
        config = worker_config(tmp_path, server.url)
        digest = open_store(config, "learner").put(DATA)
        assert bench.store.path(digest).read_bytes() == DATA
        moved = config.model_copy(
            update={
                "layout": config.layout.model_copy(update={"objects_dir": str(tmp_path / "other")})
            }
        )
        assert open_store(moved, "actor").path(digest).read_bytes() == DATA
        with pytest.raises(StoreError, match="only the learner writes"):
            open_store(config, "actor").put(b"an actor's")
    finally:
        server.close()


def test_objects_travel_over_tls_with_the_token_and_the_ca_of_the_moment(tmp_path):
    from tls_kit import Authority, Issuer, authentication

    from rollout.coordinator.server.callers import AccountCallers
    from rollout.protocol.tls import Certificate

    issuer, authority = Issuer("ES256"), Authority()
    authority.issue(tmp_path / "tls")
    ca = authority.write_ca(tmp_path / "ca.crt")
    certificate = Certificate(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    wanted = authentication(issuer.write_keys(tmp_path / "jwks.json"))
    bench = Bench(tmp_path)
    server = HttpServer(bench, callers=AccountCallers(wanted, "uid-1"), certificate=certificate)
    try:
        plain = worker_config(tmp_path, "http://127.0.0.1:1")
        layout = plain.layout.model_copy(update={"coordinator_url": server.url, "ca_file": str(ca)})
        config = plain.model_copy(update={"layout": layout, "authentication": wanted})
        (tmp_path / "token").write_text(issuer.token("learner"))
        store = open_store(config, "learner")
        digest = store.put(DATA)
        issuer.rotate("key-2")
        issuer.write_keys(tmp_path / "jwks.json")
        (tmp_path / "token").write_text(issuer.token("learner"))
        newer = Authority("newer")
        newer.write_ca(ca)
        newer.issue(tmp_path / "tls")
        assert certificate.refresh()
        assert store.has(digest)
        (tmp_path / "token").write_text(issuer.token("learner", aud=["rollout/uid-2"]))
        with pytest.raises(StoreError, match="HTTP 401"):
            store.has(digest)
    finally:
        server.close()
        bench.close()


def test_a_worker_does_not_come_back_before_it_was_told_to(url, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "TRANSFERS_MAX", 0)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        monkeypatch.setattr(objects, "TRANSFERS_MAX", 1)

    monkeypatch.setattr("rollout.objects.retry.time.sleep", sleep)
    kit.served_store(url, tmp_path / "cache").put(DATA)
    assert waited[0] >= 1.0
