"""Holders of a key want other keys' files and batches, files elsewhere on the disk, and all of its room."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest
from batch_kit import CHAT, begin, client_of, ended, line, pack
from gateway_kit import until

from rollout.errors import SpecError
from rollout.inference.gateway.batches import desk, store, uploads
from rollout.inference.gateway.batches.store import FileStore

BOUNDARY = "xxboundaryxx"
PART = 'Content-Disposition: form-data; name="{}"{}\r\n\r\n'


@pytest.fixture
async def serve(gateway, tmp_path):
    async def start(**settings):
        return await gateway(settings={"files": str(tmp_path / "files"), **settings})

    return start


async def newcomer(served):
    """Another key."""
    key = served.new_key()
    await until(lambda: served.state.ring.find(key.split("-")[2]), "the key")
    return key


def form(*parts: tuple[str, str, bytes], end: bool = True) -> bytes:
    body = b"".join(
        f"--{BOUNDARY}\r\n{PART.format(name, more)}".encode() + data + b"\r\n"
        for name, more, data in parts
    )
    return body + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


async def send(served, body, kind="multipart/form-data", key=None):
    headers = {
        **served.headers(key),
        "Content-Type": f"{kind}; boundary={BOUNDARY}" if kind else "",
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(served.url + "/v1/files", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def kept(served) -> list[Path]:
    """Everything on the disk but the lock."""
    folder = Path(served.state.settings.files)
    return [one for one in folder.rglob("*") if one.is_file() and one.name != ".lock"]


async def test_what_is_anothers_is_not_there(serve):
    served = await serve()
    mine = client_of(served)
    batch = await ended(mine, (await begin(mine, [line("a", "Hi")])).id)
    other = {"Authorization": f"Bearer {await newcomer(served)}"}
    calls = [
        ("GET", f"/v1/files/{batch.input_file_id}"),
        ("GET", f"/v1/files/{batch.output_file_id}/content"),
        ("DELETE", f"/v1/files/{batch.output_file_id}"),
        ("GET", f"/v1/batches/{batch.id}"),
        ("POST", f"/v1/batches/{batch.id}/cancel"),
    ]
    never = [
        (method, path.replace(path.split("/")[3], "file-" + "0" * 32)) for method, path in calls
    ]
    async with aiohttp.ClientSession(headers=other) as session:
        told = []
        for method, path in (*calls, *never):
            async with session.request(method, served.url + path) as answer:
                told.append((answer.status, (await answer.json())["error"]["code"]))
        assert set(told) == {(404, "not_found")}
        asked = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
        async with session.post(served.url + "/v1/batches", json=asked) as answer:
            assert answer.status == 404
        for path in ("/v1/files", "/v1/batches"):
            async with session.get(served.url + path) as answer:
                assert (await answer.json())["data"] == []
    assert (await mine.files.content(batch.output_file_id)).content


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/..%2f..%2fkeys%2fkeys.json",
        "/v1/files/..%2f.lock/content",
        "/v1/files/%2fetc%2fpasswd/content",
        "/v1/files/file-%00/content",
        "/v1/files/file-" + "A" * 32,
        "/v1/files/file-" + "0" * 5000,
        "/v1/batches/..%2f..%2fkeys",
        "/v1/batches/batch_" + "0" * 31 + "%0a",
        "/v1/files/../../v1/files",
    ],
)
async def test_an_id_is_no_path(serve, path):
    import yarl

    served = await serve()
    url = yarl.URL(served.url + path, encoded=True)
    async with (
        aiohttp.ClientSession(headers=served.headers()) as session,
        session.get(url) as answer,
    ):
        assert answer.status in {400, 404}
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "name",
    [
        "../../../../tmp/owned",
        "/etc/cron.d/x",
        "..",
        "a\\..\\b",
        "x" * 5000,
        "",
        "новый\u202e.jsonl",
    ],
)
async def test_a_files_name_is_text_and_no_place(serve, tmp_path, name):
    served = await serve()
    more = f'; filename="{name}"'
    status, answer = await send(
        served, form(("purpose", "", b"batch"), ("file", more, pack([line("a", "Hi")])))
    )
    assert status == 200
    assert len(answer["filename"]) <= 256
    owner = tmp_path / "files" / served.key.split("-")[2]
    assert sorted(one.suffix for one in kept(served)) == [".data", ".json"]
    assert {one.parent for one in kept(served)} == {owner}
    for one in (owner, *kept(served)):
        assert not stat.S_IMODE(one.stat().st_mode) & 0o077


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data"),
        (b"nonsense", "multipart/form-data"),
        (b"{}", "application/json"),
        (b"x", ""),
        (form(("file", '; filename="a"', b"x"), end=False)[:-30], "multipart/form-data"),
        (form(("purpose", "", b"batch")), "multipart/form-data"),
        (form(("file", '; filename="a"', b"x")), "multipart/form-data"),
        (form(("purpose", "", b"batch"), ("file", '; filename="a"', b"")), "multipart/form-data"),
        (form(("purpose", "", b"p" * 5000), ("file", "", b"x")), "multipart/form-data"),
        (form(("purpose", "", b"fine-tune"), ("file", "", b"x")), "multipart/form-data"),
        (form(*[("purpose", "", b"batch")] * 50), "multipart/form-data"),
        (form(("file", "", b"x"), ("file", "", b"y")), "multipart/form-data"),
        (form(("expires_after[anchor]", "", b"created_at")), "multipart/form-data"),
        (
            f"--{BOUNDARY}\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n".encode(),
            "multipart/form-data",
        ),
        (f"--{BOUNDARY}\r\n{'x' * 20_000}: y\r\n\r\n".encode(), "multipart/form-data"),
        (b"--" + BOUNDARY.encode() + b"\r\n" + b"a: b\r\n" * 5000 + b"\r\n", "multipart/form-data"),
    ],
)
async def test_a_form_that_is_none_is_refused_and_leaves_nothing(serve, body, kind):
    served = await serve()
    status, answer = await send(served, body, kind)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert kept(served) == []


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_file_that_is_too_large_is_refused_while_it_comes(serve, monkeypatch, chunked):
    monkeypatch.setattr(uploads, "FILE_BYTES_MAX", 100_000)
    served = await serve()
    body = form(("purpose", "", b"batch"), ("file", '; filename="a"', b"x" * 5_000_000))

    async def trickle():
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    try:
        status, answer = await send(served, trickle() if chunked else body)
        assert (status, answer["error"]["code"]) == (413, "file_too_large")
    except aiohttp.ClientConnectionError:
        pass  # told before it was all sent, which a client may meet as a closed connection
    await until(lambda: not kept(served), "the removal")


async def test_a_key_fills_its_own_room_and_no_others(serve, monkeypatch):
    monkeypatch.setattr(store, "BYTES_MAX", 1000)
    monkeypatch.setattr(store, "FILES_MAX", 3)
    served = await serve()
    large = form(("purpose", "", b"batch"), ("file", '; filename="a"', b"x" * 600))
    small = form(("purpose", "", b"batch"), ("file", '; filename="a"', b"x"))
    assert (await send(served, large))[0] == 200
    status, answer = await send(served, large)
    assert (status, answer["error"]["code"]) == (413, "files_full")
    assert [(await send(served, small))[0] for _ in range(3)] == [200, 200, 413]
    assert (await send(served, large, key=await newcomer(served)))[0] == 200


async def test_who_sends_slowly_is_sent_away_and_leaves_nothing(serve):
    served = await serve(body_seconds=0.2)
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = form(("purpose", "", b"batch"), end=False)
    writer.write(
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: 100000\r\n\r\n".encode()
        + head
        + f"--{BOUNDARY}\r\n{PART.format('file', '; filename=a')}half".encode()
    )
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    assert kept(served) == []


async def test_who_leaves_in_the_middle_leaves_nothing(serve):
    served = await serve()
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: 100000\r\n\r\n"
        f"--{BOUNDARY}\r\n{PART.format('file', '; filename=a')}half".encode()
    )
    await until(lambda: kept(served), "the beginning")
    writer.close()
    await until(lambda: not kept(served), "the removal")


async def test_a_key_has_so_many_batches_that_have_not_ended(serve, monkeypatch):
    monkeypatch.setattr(desk, "OPEN_BATCHES_MAX", 2)
    served = await serve()
    client = client_of(served)
    first = await begin(client, [line("a", "hang")])
    asked = {"input_file_id": first.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    assert (await served.post("/v1/batches", asked))[0] == 200
    status, answer, headers = await served.post("/v1/batches", asked)
    assert (status, answer["error"]["code"]) == (429, "too_many_batches")
    assert headers["Retry-After"] == "60"
    another = client_of(served, await newcomer(served))
    batch = await begin(another, [line("b", "Hi")])
    assert (await ended(another, batch.id)).status == "completed"


async def test_a_file_that_a_batch_needs_is_not_deleted(serve):
    served = await serve()
    client = client_of(served)
    batch = await begin(client, [line("a", "hang")])
    async with (
        aiohttp.ClientSession(headers=served.headers()) as session,
        session.delete(f"{served.url}/v1/files/{batch.input_file_id}") as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "file_in_use")


@pytest.mark.parametrize("limit", ["0", "-1", "101", "1e3", "x", "9" * 5000, "٣"])
async def test_a_page_is_as_long_as_it_may_be(serve, limit):
    served = await serve()
    async with (
        aiohttp.ClientSession(headers=served.headers()) as session,
        session.get(served.url + "/v1/batches", params={"limit": limit}) as answer,
    ):
        assert answer.status == 400


async def test_answers_of_another_tenants_cache_are_not_met(serve):
    """The salt of a batch's requests is its key's own."""
    served = await serve()
    mine, other = client_of(served), client_of(served, await newcomer(served))
    for client in (mine, other):
        await ended(client, (await begin(client, [line("a", "Hi")])).id)
    salts = [one["cache_salt"] for one in served.engines["a"].seen]
    assert len(set(salts)) == 2


async def test_a_gateway_that_asks_for_no_key_keeps_no_files(serve):
    with pytest.raises(SpecError, match="belong to keys"):
        await serve(is_open=True)


def test_a_folder_is_one_servers(tmp_path):
    first = FileStore(tmp_path / "files")
    with pytest.raises(SpecError, match="another server has this folder"):
        FileStore(tmp_path / "files")
    first.close()
    FileStore(tmp_path / "files").close()


def test_a_record_that_is_broken_or_of_another_is_left_out(tmp_path):
    owner = tmp_path / "0123456789abcdef"
    owner.mkdir(parents=True)
    name = "file-" + "0" * 32
    record = {
        "id": name,
        "owner": "fedcba9876543210",
        "bytes": 1,
        "created_at": 1,
        "filename": "a",
        "purpose": "batch",
    }
    (owner / f"{name}.json").write_text(json.dumps(record))
    (owner / "batch_1.json").write_bytes(b"\xff{")
    (owner / "cut.upload").write_bytes(b"x")
    found = FileStore(tmp_path)
    assert found.files("fedcba9876543210") == found.files(owner.name) == []
    assert list(found.open_batches()) == []
    assert not (owner / "cut.upload").exists()
    found.close()
