"""A gateway with a certificate: TLS beside its plain port, a renewed one taken up without a restart, one that is none refused by name."""

import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from gateway_processes import CHAT, free_port, processes

from rollout.inference.gateway.state import GatewaySettings

pytestmark = pytest.mark.process
WAIT_SECONDS = 60.0


def write_certificate(folder):
    """A new one that signs itself; its PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(
        now + timedelta(days=1)
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for file, text in (("tls.key", private), ("tls.crt", pem)):
        fresh = folder / f"{file}.new"
        fresh.write_bytes(text)
        fresh.replace(folder / file)
    return pem.decode()


async def ask(running, port, pem):
    trust = ssl.create_default_context(cadata=pem)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    async with (
        aiohttp.ClientSession(headers=running.headers()) as session,
        session.post(f"https://localhost:{port}{CHAT}", json=body, ssl=trust) as answer,
    ):
        return answer.status, (await answer.json())["choices"]


def presented(port):
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


async def test_a_client_is_answered_by_tls_and_a_renewed_certificate_needs_no_restart(tmp_path):
    first, port = write_certificate(tmp_path), free_port()
    with processes(tls=str(tmp_path), tls_port=port) as running:
        status, choices = await ask(running, port, first)
        assert (status, len(choices)) == (200, 1)
        second = write_certificate(tmp_path)
        deadline = time.monotonic() + WAIT_SECONDS
        while presented(port) != second.strip():
            assert running.gateway.poll() is None
            assert time.monotonic() < deadline, "the new certificate was not taken up"
        assert (await ask(running, port, second))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(running, port, first)

        (tmp_path / "tls.crt").write_text("no certificate")
        assert (await ask(running, port, second))[0] == 200, "what is broken changes nothing"


async def test_what_is_older_than_tls_1_3_is_refused(tmp_path):
    pem, port = write_certificate(tmp_path), free_port()
    with processes(tls=str(tmp_path), tls_port=port) as running:
        old = ssl.create_default_context(cadata=pem)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with aiohttp.ClientSession(headers=running.headers()) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"https://localhost:{port}/v1/models", ssl=old)


def test_a_certificate_that_is_none_ends_the_start_with_its_name(tmp_path):
    write_certificate(tmp_path)
    (tmp_path / "tls.key").write_text("no key")
    settings = GatewaySettings(
        host="127.0.0.1",
        port=free_port(),
        table=str(tmp_path / "table.json"),
        keys=str(tmp_path / "keys"),
        admin=str(tmp_path / "admin.sock"),
        tls=str(tmp_path),
        tls_port=free_port(),
        is_open=True,
    )
    config = tmp_path / "gateway.json"
    config.write_bytes(msgspec.json.encode(settings))
    command = [sys.executable, "-m", "rollout.entrypoints.serving.gateway", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "tls.key are no pair to serve with" in done.stderr
