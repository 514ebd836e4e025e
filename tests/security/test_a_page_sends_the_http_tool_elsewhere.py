"""The attacker writes a URL, a page or a name's addresses, and wants the tool to reach what only this machine reaches, or to fill it."""

import asyncio
import gzip
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tls_kit import Authority

from rollout.errors import InfrastructureError
from rollout.tools.contract import ToolMistake
from rollout.tools.http import source
from rollout.tools.http.rules import allowed_hosts, is_public, read_url
from rollout.tools.http.source import HttpSource
from rollout.tools.toolbox import Toolbox
from rollout.types import ToolCall

METADATA = "169.254.169.254"
HOST = "docs.example.org"
ALLOWED = allowed_hosts([HOST, f"{HOST}:80", f"{HOST}:8443"])


# -- what is written


@pytest.mark.parametrize(
    "url",
    [
        f"http://{METADATA}/latest/meta-data/",
        "https://metadata.google.internal/",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://[::1]/",
        "https://[::ffff:169.254.169.254]/",
        f"https://{HOST}.evil.org/",
        f"https://evil.org/{HOST}",
        f"https://evil.org#@{HOST}/",
        f"https://evil.org?{HOST}",
        f"https://{HOST}@evil.org/",
        f"https://user:secret@{HOST}/",
        f"https://{HOST}:22/",
        f"https://{HOST}:99999/",
        f"https://{HOST}:80/",
        f"http://{HOST}:443/",
        f"https://{HOST}./",
        f"https://{HOST}\\@evil.org/",
        f"https://evil.org\t{HOST}/",
        f"https://{HOST}/a b",
        f"https://{HOST}/\r\nHost: evil.org",
        f"https://{HOST}/" + "a" * 3000,
        "https://döcs.example.org/",
        f"ftp://{HOST}/",
        "file:///etc/passwd",
        f"//{HOST}/",
        HOST,
        "",
    ],
)
def test_what_is_no_page_of_an_allowed_host_is_never_asked_for(url):
    with pytest.raises(ToolMistake, match=r"^url: "):
        read_url(url, ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        f"https://{HOST}/a?b=c#d",
        "https://DOCS.example.org/",
        f"http://{HOST}/",
        f"http://{HOST}:8443/",
    ],
)
def test_pages_of_an_allowed_host_are(url):
    assert read_url(url, ALLOWED).raw_host == HOST


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "192.0.2.1",
        "198.18.0.1",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001::1",
        "2001:db8::1",
        "fec0::1",
        "nonsense",
    ],
)
def test_an_address_that_not_everybody_reaches_is_not_public(address):
    assert not is_public(address)


def test_addresses_of_the_internet_are_public():
    assert is_public("8.8.8.8")
    assert is_public("2606:4700:4700::1111")


# -- what answers


def nobody_private(host, addresses):
    """The rule of a machine whose Internet is 127.0.0.1: there is no other where tests run."""
    if not addresses or set(addresses) != {"127.0.0.1"}:
        raise ToolMistake(f"{host} has an address that is not public: it is not asked")


@asynccontextmanager
async def answering(handler, *, hosts=(), addresses=("127.0.0.1",), require=nobody_private):
    """The tool, and a server that answers as ``docs.example.org``; ``asked`` are the names that were resolved."""
    asked = []

    async def resolve(host, port):
        asked.append(host)
        return addresses.pop(0) if isinstance(addresses, list) else addresses

    application = web.Application()
    application.router.add_route("*", "/{any:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    allowed = [f"{HOST}:{port}", *hosts]
    [tool] = HttpSource(allowed, resolve=resolve, require=require).open({})

    async def get(path="/", host=HOST):
        return await tool.call({"url": f"http://{host}:{port}{path}"}, "key")

    try:
        yield get, asked
    finally:
        await runner.cleanup()


async def test_a_page_is_read_as_text():
    async def handler(request):
        return web.Response(
            text=f"{request.host.split(':')[0]} {request.path} {sorted(request.cookies)}"
        )

    async with answering(handler) as (get, asked):
        answer = await get("/a")

    assert (answer.text, answer.is_error) == (f"{HOST} /a []", False)
    assert asked == [HOST]


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (f"http://{METADATA}/latest/", "the page leads to http://169.254.169.254:80"),
        ("http://localhost/", "the page leads to http://localhost:80"),
        ("https://evil.org/", "the page leads to https://evil.org:443"),
        ("//evil.org/", "the page leads to http://evil.org:80"),
        ("file:///etc/passwd", "expected https://host/path"),
        ("gopher://x/", "expected https://host/path"),
        ("/again", "leads elsewhere more than 5 times"),
        ("http://[::1]:1/", "the page leads to http://::1:1"),
    ],
)
async def test_a_redirect_is_held_to_the_same_hosts(location, why):
    async def handler(request):
        return web.Response(status=302, headers={"Location": location})

    async with answering(handler) as (get, asked):
        with pytest.raises(ToolMistake, match=why.replace("[", r"\[")):
            await get()
    assert set(asked) == {HOST}


async def test_a_name_that_resolves_to_the_metadata_service_is_not_asked():
    async def handler(request):
        return web.Response(text="secret")

    for addresses in ((METADATA,), ("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ()):
        async with answering(handler, addresses=addresses, require=source.require_public) as (
            get,
            _,
        ):
            with pytest.raises(ToolMistake, match="an address that is not public"):
                await get()


async def test_a_name_that_is_resolved_otherwise_a_moment_later_gains_nothing():
    async def handler(request):
        return web.Response(text="the page")

    async with answering(handler, addresses=[("127.0.0.1",), (METADATA,)]) as (get, asked):
        assert (await get()).text == "the page"
        assert asked == [HOST]
        with pytest.raises(ToolMistake, match="not public"):
            await get()


async def test_a_redirect_within_a_host_is_resolved_and_checked_again():
    async def handler(request):
        return web.Response(status=302, headers={"Location": "/other"})

    async with answering(handler, addresses=[("127.0.0.1",), (METADATA,)]) as (get, asked):
        with pytest.raises(ToolMistake, match="not public"):
            await get()
    assert asked == [HOST, HOST]


async def test_a_giant_body_is_cut():
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async with answering(handler) as (get, _):
        answer = await get()

    assert answer.text.endswith(f"[cut after {source.BODY_BYTES_MAX} bytes]")
    assert len(answer.text) < source.BODY_BYTES_MAX + 100


@pytest.mark.parametrize("begins", [False, True])
async def test_a_slow_body_costs_its_seconds(begins, monkeypatch):
    monkeypatch.setattr(source, "CALL_SECONDS_MAX", 0.5)

    async def handler(request):
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if begins:
            await response.prepare(request)
        for _ in range(100):
            await asyncio.sleep(0.1)
            if begins:
                await response.write(b"x")
        return response

    async with answering(handler) as (get, _):
        answer = await get()

    assert answer.is_error
    assert answer.signals == {"tool_timeouts": 1}


@pytest.mark.parametrize("packed", ["gzip", "deflate", "br"])
async def test_nothing_is_unpacked(packed):
    async def handler(request):
        assert request.headers["Accept-Encoding"] == "identity"
        body = gzip.compress(b"0" * (10 << 20))
        headers = {"Content-Encoding": packed, "Content-Type": "text/plain"}
        return web.Response(body=body, headers=headers)

    async with answering(handler) as (get, _):
        with pytest.raises(ToolMistake, match=f"the page is packed .{packed}."):
            await get()


async def test_no_cookie_and_no_credential_of_this_process_goes_out(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    seen = []

    async def handler(request):
        seen.append(dict(request.headers))
        response = web.Response(status=302 if len(seen) == 1 else 200, headers={"Location": "/b"})
        response.set_cookie("session", "1")
        return response

    async with answering(handler) as (get, _):
        await get()

    assert len(seen) == 2
    assert {name for one in seen for name in one} == {
        "Host",
        "User-Agent",
        "Accept",
        "Accept-Encoding",
        "Connection",
    }


async def test_an_image_and_an_error_are_told_and_no_odd_charset_is_obeyed():
    async def handler(request):
        if request.path == "/image":
            return web.Response(body=b"\x89PNG", content_type="image/png")
        return web.Response(status=404, text="\x1b[2Jno such page", charset="utf-7")

    async with answering(handler) as (get, _):
        image, missing = await get("/image"), await get("/none")

    assert image.text == "200: a page of type image/png, which is not text"
    assert (missing.text, missing.is_error) == ("404\n+ABs[2Jno such page", True)


async def test_a_conversation_holds_no_escape_and_an_equal_question_is_not_asked_again():
    async def resolve(host, port):
        raise AssertionError

    toolbox = Toolbox([HttpSource([HOST], resolve=resolve)], {})
    given = {"url": f"https://{HOST}:22/\x1b[2J"}
    call = ToolCall(call_id="1", name="http", arguments_text="", arguments=given)
    done = await toolbox.answer([call])

    assert "\x1b" not in done.results[0].text
    assert done.results[0].is_error


async def test_a_name_that_is_not_found_or_not_reached_is_nobodys_doing():
    async def handler(request):
        return web.Response()

    async def nowhere(host, port):
        raise OSError("no such name")

    [tool] = HttpSource([HOST], resolve=nowhere).open({})
    with pytest.raises(InfrastructureError, match="is not found: no such name"):
        await tool.call({"url": f"https://{HOST}/"}, "key")
    async with answering(handler, hosts=[f"{HOST}:1"]) as (get, _):
        pass
    with pytest.raises(InfrastructureError, match="is not reached"):
        await get()


async def test_an_answer_that_is_none_is_the_pages_doing():
    async def talk(reader, writer):
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(host, port):
        return ["127.0.0.1"]

    [tool] = HttpSource([f"{HOST}:{port}"], resolve=resolve, require=nobody_private).open({})
    with pytest.raises(ToolMistake, match=r"the answer of docs\.example\.org is none"):
        await tool.call({"url": f"http://{HOST}:{port}/"}, "key")
    server.close()


@pytest.mark.parametrize("name", [HOST, "evil.org"])
async def test_whoever_answers_at_the_checked_address_must_be_the_host(name, tmp_path):
    authority = Authority()
    authority.issue(tmp_path, (name,))
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    trust = ssl.create_default_context(cafile=str(authority.write_ca(tmp_path / "ca.crt")))

    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\npage"
        )
        writer.close()

    async def resolve(host, port):
        return ["127.0.0.1"]

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=own)
    port = server.sockets[0].getsockname()[1]
    here = {"resolve": resolve, "require": nobody_private}
    given = {"url": f"https://{HOST}:{port}/"}
    [tool] = HttpSource([f"{HOST}:{port}"], trust=trust, **here).open({})
    [strict] = HttpSource([f"{HOST}:{port}"], **here).open({})

    if name == HOST:
        assert (await tool.call(given, "key")).text == "page"
    else:
        with pytest.raises(InfrastructureError, match=r"is not reached.*certificate"):
            await tool.call(given, "key")
    with pytest.raises(InfrastructureError, match=r"is not reached.*certificate"):
        await strict.call(given, "key")
    server.close()


@pytest.mark.parametrize("given", [{}, {"url": 3}, {"url": f"https://{HOST}/", "method": "DELETE"}])
async def test_arguments_of_another_form_are_told(given):
    [tool] = HttpSource([HOST]).open({})
    with pytest.raises(ToolMistake, match="wrong arguments"):
        await tool.call(given, "key")
