"""TLS on every address but loopback, from files that somebody else rotates."""

from __future__ import annotations

import asyncio
import threading

import pytest
from coordinator_kit import Bench, FakeActor, HttpServer
from tls_kit import Authority

from rollout.errors import CoordinatorError, SpecError
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.tls import Certificate, Trust, is_loopback, open_certificate
from rollout.protocol.transport import HttpTransport
from rollout_api.worker import Layout

SECRET = "secret"


@pytest.fixture
def served(tmp_path):
    authority = Authority()
    authority.issue(tmp_path / "tls")
    ca = authority.write_ca(tmp_path / "ca.crt")
    bench = Bench(tmp_path)
    certificate = Certificate(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    server = HttpServer(bench, SECRET, certificate=certificate)
    yield authority, ca, certificate, server
    server.close()
    bench.close()


def connect(server, ca, patience=0.0):
    transport = HttpTransport(server.url, lambda: token_for(SECRET, "operator"), Trust(ca))
    return CoordinatorClient(transport, patience_seconds=patience)


def test_a_client_knows_the_coordinator_by_its_ca(served, tmp_path):
    _, ca, _, server = served
    assert connect(server, ca).status().name == "arithmetic"
    stranger = Authority("another run").write_ca(tmp_path / "other.crt")
    with pytest.raises(CoordinatorError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(server, stranger).status()


def test_a_certificate_for_another_name_is_refused(served, tmp_path):
    authority, ca, certificate, server = served
    authority.issue(tmp_path / "tls", ("elsewhere.svc",))
    assert certificate.refresh()
    with pytest.raises(CoordinatorError, match="not valid for"):
        connect(server, ca).status()


def test_a_rotated_certificate_is_served_without_a_restart(served, tmp_path):
    authority, ca, certificate, server = served
    old = connect(server, ca)
    assert old.status().name == "arithmetic"
    assert not certificate.refresh()
    authority.issue(tmp_path / "tls")
    assert certificate.refresh()
    assert connect(server, ca).status().name == "arithmetic"
    assert old.status().name == "arithmetic", "open connections live on"


def test_no_handshake_meets_half_of_a_pair(served, tmp_path):
    authority, ca, certificate, server = served

    def renew():
        for _ in range(30):
            authority.issue(tmp_path / "tls")
            assert certificate.refresh()
            for _ in range(30):
                certificate._stamp = None  # as often as there is time for
                certificate.refresh()

    renewing = threading.Thread(target=renew)
    renewing.start()
    while renewing.is_alive():
        assert connect(server, ca).status().name == "arithmetic"
    renewing.join()


def test_a_rotated_ca_is_taken_up_by_living_clients(served, tmp_path):
    """First everybody trusts both, then the certificate changes, then the old CA goes."""
    _, ca, certificate, server = served
    client = connect(server, ca)
    client.status()
    newer = Authority("newer")
    newest = newer.write_ca(tmp_path / "new.crt").read_bytes()
    ca.write_bytes(ca.read_bytes() + newest)
    newer.issue(tmp_path / "tls")
    assert certificate.refresh()
    client.close()
    assert client.status().name == "arithmetic"
    newer.write_ca(ca)
    client.close()
    assert client.status().name == "arithmetic"


def test_half_a_rotation_leaves_the_last_pair_in_force(served, tmp_path):
    authority, ca, certificate, server = served
    key = (tmp_path / "tls" / "tls.key").read_bytes()
    authority.issue(tmp_path / "tls")
    new_key = (tmp_path / "tls" / "tls.key").read_bytes()
    (tmp_path / "tls" / "tls.key").write_bytes(key)
    assert not certificate.refresh()
    assert connect(server, ca).status().name == "arithmetic"
    (tmp_path / "tls" / "tls.key").write_bytes(new_key)
    assert certificate.refresh()
    assert connect(server, ca).status().name == "arithmetic"


def test_the_server_looks_by_itself(served, tmp_path, monkeypatch):
    authority, _, certificate, _ = served
    monkeypatch.setattr("rollout.protocol.tls.CHECK_SECONDS", 0.01)
    before = certificate._stamp
    authority.issue(tmp_path / "tls")

    async def look() -> None:
        watching = asyncio.create_task(certificate.watch())
        async with asyncio.timeout(60):
            while certificate._stamp == before:
                await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(look())


def test_a_whole_actor_works_over_tls(served):
    _, ca, _, server = served
    transport = HttpTransport(server.url, lambda: token_for(SECRET, "actor"), Trust(ca))
    actor = FakeActor(CoordinatorClient(transport))
    assert actor.claim().tasks == ()


def layout(url, folder, **more):
    return Layout(
        run_dir=str(folder),
        coordinator_url=url,
        token_file=str(folder / "token"),
        objects_dir=str(folder / "objects"),
        ledger_path=str(folder / "ledger.db"),
        **more,
    )


def test_tokens_are_not_sent_in_the_clear(tmp_path):
    for url in (
        "http://10.0.0.7:8443",
        "http://run-coordinator.team.svc:8443",
        "http://[fe80::1]:1",
    ):
        with pytest.raises(CoordinatorError, match="in the clear"):
            CoordinatorClient.connect(url, "token")
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        CoordinatorClient.connect(url, "token").close()
    with pytest.raises(CoordinatorError, match="caFile"):
        CoordinatorClient.connect("https://run-coordinator.team.svc:8443", "token")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "run-coordinator"])
def test_the_coordinator_does_not_listen_for_tokens_in_the_clear(tmp_path, host):
    with pytest.raises(SpecError, match="without TLS"):
        open_certificate(layout("http://127.0.0.1:8443", tmp_path), host)
    assert not is_loopback(host)


def test_https_without_a_certificate_is_refused_by_name(tmp_path):
    given = layout("https://localhost:8443", tmp_path, ca_file="ca.crt")
    with pytest.raises(SpecError, match=r"certificateFile"):
        open_certificate(given, "0.0.0.0")
    pair = {"certificate_file": str(tmp_path / "no.crt"), "key_file": str(tmp_path / "no.key")}
    with pytest.raises(SpecError, match="no pair to serve with"):
        open_certificate(layout("https://localhost:1", tmp_path, ca_file="c", **pair), "0.0.0.0")


@pytest.mark.parametrize(
    "bad",
    [
        {"coordinatorUrl": "https://localhost:1"},
        {"certificateFile": "tls.crt"},
        {"keyFile": "tls.key"},
    ],
)
def test_half_a_layout_is_refused(tmp_path, bad):
    given = layout("http://localhost:1", tmp_path).model_dump() | bad
    with pytest.raises(ValueError, match=r"caFile|certificateFile"):
        Layout.model_validate(given)
