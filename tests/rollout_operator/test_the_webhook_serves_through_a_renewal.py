"""The server in its own process space: TLS that changes under load, readiness, and what it answers."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime

import aiohttp
import pytest

from rollout_operator.certs.issue import new_authority, new_server, to_pem
from rollout_operator.webhook.server import SHARED_UID, Ports, WebhookServer
from rollout_operator.webhook.settings import parse_settings
from rollout_operator.webhook.tls import Certificate, KeyPair

NAME = "webhook.test"


class Files:
    def __init__(self, folder):
        self.authority = new_authority(datetime.now(UTC))
        self.pair = KeyPair(certificate=folder / "tls.crt", key=folder / "tls.key")

    def renew(self):
        made = new_server(self.authority, [NAME], datetime.now(UTC))
        self.pair.certificate.write_bytes(made.certificate_pem)
        self.pair.key.write_bytes(made.key_pem)
        return made.certificate.serial_number

    def context(self):
        pem = to_pem(self.authority.certificate).decode()
        return ssl.create_default_context(cadata=pem)


async def allow(body, **_):
    return {"response": {"uid": body["request"]["uid"], "allowed": True}}


@contextlib.asynccontextmanager
async def serving(files, answer=allow):
    certificate = Certificate(files.pair)
    server = WebhookServer(
        certificate, Ports(host="127.0.0.1", review=0, health=0, drain_seconds=0)
    )
    health = await server.serve_health()
    served = server(answer)
    first = asyncio.ensure_future(anext(served))
    try:
        yield server, certificate, first
    finally:
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await served.aclose()
        await health.cleanup()


async def ready(server):
    host, port = server.health_address
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/readyz") as r:
        return r.status, await r.text()


async def post(server, context, body):
    host, port = server.address
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://{host}:{port}/validate", json=body, server_hostname=NAME) as answer,
    ):
        return answer.status, await answer.json()


async def shown(server, context):
    """Serial number of the certificate that a new caller is shown."""
    _, writer = await asyncio.open_connection(*server.address, ssl=context, server_hostname=NAME)
    try:
        return int(writer.get_extra_info("peercert")["serialNumber"], 16)
    finally:
        writer.close()


def review_of(document=None):
    return {"request": {"uid": "u1", "operation": "CREATE", "object": document or {"metadata": {}}}}


async def test_ready_waits_for_the_certificate_and_for_kopf(tmp_path):
    files = Files(tmp_path)
    async with serving(files) as (server, _, first):
        await asyncio.sleep(0)
        assert await ready(server) == (503, "no certificate yet")
        files.renew()
        await asyncio.wait_for(first, 30)
        assert await ready(server) == (200, "ok")


async def test_not_ready_while_kopf_knows_no_kinds(tmp_path):
    async def unknown(_body, **_):
        raise LookupError("The specified resource has no handlers")

    files = Files(tmp_path)
    files.renew()
    async with serving(files, unknown) as (server, _, first):
        await asyncio.wait_for(first, 30)
        status, text = await ready(server)
        assert status == 503
        assert "no handlers" in text


async def test_a_renewal_under_load_refuses_nobody(tmp_path):
    files = Files(tmp_path)
    before = files.renew()
    async with serving(files) as (server, certificate, first):
        await asyncio.wait_for(first, 30)
        context = files.context()
        assert await shown(server, context) == before

        async def ask(times):
            for _ in range(times):
                status, answer = await post(server, context, review_of())
                assert (status, answer["response"]["allowed"]) == (200, True)

        askers = [asyncio.ensure_future(ask(10)) for _ in range(4)]
        await asyncio.sleep(0.05)
        after = files.renew()
        assert certificate.refresh()
        await asyncio.gather(*askers)

        assert await shown(server, context) == after


async def test_half_a_renewal_keeps_the_old_certificate(tmp_path):
    files = Files(tmp_path)
    before = files.renew()
    async with serving(files) as (server, certificate, first):
        await asyncio.wait_for(first, 30)
        half = new_server(files.authority, [NAME], datetime.now(UTC))
        files.pair.certificate.write_bytes(half.certificate_pem)

        assert not certificate.refresh()
        assert await shown(server, files.context()) == before


async def test_kopf_remembers_one_object_however_many_are_asked_about(tmp_path):
    seen = []

    async def remember(body, **_):
        seen.append(body["request"]["object"]["metadata"]["uid"])
        return await allow(body)

    files = Files(tmp_path)
    files.renew()
    async with serving(files, remember) as (server, _, first):
        await asyncio.wait_for(first, 30)
        for uid in ("a", "b"):
            await post(server, files.context(), review_of({"metadata": {"uid": uid}}))

    assert seen == [SHARED_UID, SHARED_UID]


async def test_a_server_that_ends_still_answers_and_asks_callers_to_connect_anew(tmp_path):
    files = Files(tmp_path)
    files.renew()
    certificate = Certificate(files.pair)
    server = WebhookServer(
        certificate, Ports(host="127.0.0.1", review=0, health=0, drain_seconds=2)
    )
    served = server(allow)
    await anext(served)
    host, port = server.address
    connector = aiohttp.TCPConnector(ssl=files.context())
    ending = asyncio.ensure_future(served.aclose())
    while await server.not_ready() != "ending":
        await asyncio.sleep(0)

    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://{host}:{port}/x", json=review_of(), server_hostname=NAME) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["Connection"] == "close"
        assert await server.not_ready() == "ending"
    await ending


@pytest.mark.parametrize("body", [[], {}, {"request": "text"}])
async def test_nonsense_is_refused_politely(tmp_path, body):
    files = Files(tmp_path)
    files.renew()
    async with serving(files) as (server, _, first):
        await asyncio.wait_for(first, 30)
        host, port = server.address
        connector = aiohttp.TCPConnector(ssl=files.context())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://{host}:{port}/x", json=body, server_hostname=NAME) as response,
        ):
            assert response.status == 400


def test_settings_name_the_bad_variable():
    with pytest.raises(ValueError, match="ROLLOUT_WEBHOOK_PORT is '99999'"):
        parse_settings({"ROLLOUT_WEBHOOK_PORT": "99999"})


def test_settings_find_the_files_in_the_folder():
    files = parse_settings({"ROLLOUT_WEBHOOK_CERTIFICATES": "/certs"}).files
    assert str(files.certificate) == "/certs/tls.crt"
    assert str(files.key) == "/certs/tls.key"
