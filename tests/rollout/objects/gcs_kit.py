"""A server of ours that speaks Google Cloud Storage's JSON API as documented: generations and preconditions, sessions.

cloud.google.com/storage/docs: json_api/v1/objects, request-preconditions, resumable-uploads, performing-resumable-uploads.
The emulators at hand ignore ``ifGenerationMatch``. Objects are in memory; a bucket is made by ``buckets.add``.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import threading
import time
import uuid
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import google_crc32c
from aiohttp import web

STEP = 256 << 10
"""Chunks of a session are multiples of this, but the last."""
BODY_MAX = 1 << 30
_generations = itertools.count(time.time_ns() // 1000)


@dataclass
class Stored:
    name: str
    data: bytes
    metadata: dict[str, str]
    key: str = ""
    generation: int = field(default_factory=lambda: next(_generations))
    updated: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")


@dataclass
class Session:
    bucket: str
    query: dict[str, str]
    resource: dict
    size_bytes: int
    data: bytearray = field(default_factory=bytearray)
    done: Stored | None = None


@dataclass
class GoogleServer:
    """What the server holds. ``persists`` bounds how many bytes of a chunk it keeps, as the real one may."""

    url: str = ""
    buckets: set[str] = field(default_factory=set)
    objects: dict[tuple[str, str], Stored] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    persists: int | None = None
    keys: set[str] | None = field(default_factory=set)
    """Keys that it may use; None: it knows nothing of keys, as an emulator."""

    def names(self, bucket: str) -> list[str]:
        return sorted(name for where, name in self.objects if where == bucket)

    async def look(self, request: web.Request) -> web.Response:
        return web.json_response(self._resource(request, self._find(request)))

    async def download(self, request: web.Request) -> web.Response:
        found = self._find(request)
        span, size = request.http_range, len(found.data)
        start, stop = span.start or 0, min(size if span.stop is None else span.stop, size)
        headers = {
            "x-goog-generation": str(found.generation),
            "x-goog-hash": f"crc32c={crc32c(found.data)}",
        }
        if "Range" not in request.headers:
            return web.Response(body=found.data, headers=headers)
        if start >= size:
            return web.Response(status=416)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return web.Response(status=206, body=found.data[start:stop], headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        found = self._find(request)
        self._meet(dict(request.query), found)
        del self.objects[request.match_info["bucket"], found.name]
        return web.Response(status=204)

    async def list(self, request: web.Request) -> web.Response:
        bucket, prefix = self._bucket(request), request.query.get("prefix", "")
        after = request.query.get("pageToken", "")
        most = int(request.query.get("maxResults", 1000))
        names = [one for one in self.names(bucket) if one.startswith(prefix) and one > after]
        items = [self._resource(request, self.objects[bucket, one]) for one in names[:most]]
        page = {"kind": "storage#objects", "items": items}
        if len(names) > most:
            page["nextPageToken"] = names[most - 1]
        return web.json_response(page)

    async def begin(self, request: web.Request) -> web.Response:
        bucket, query = self._bucket(request), dict(request.query)
        body = await request.read()
        if query["uploadType"] == "multipart":
            resource, data = _related(body, request.headers["Content-Type"])
            stored = self._store(bucket, query, {"name": query.get("name"), **resource}, data)
            return web.json_response(self._resource(request, stored))
        resource = {**json.loads(body or b"{}"), "name": query["name"]}
        self._meet(query, self.objects.get((bucket, query["name"])))
        name = uuid.uuid4().hex
        size = int(request.headers["X-Upload-Content-Length"])
        self.sessions[name] = Session(bucket, query, resource, size)
        place = f"{request.url.origin()}{request.path}?uploadType=resumable&upload_id={name}"
        return web.Response(headers={"Location": place})

    async def go_on(self, request: web.Request) -> web.Response:
        session = self.sessions.get(request.query["upload_id"])
        if session is None:
            return web.Response(status=410, text="upload_id is not known")
        body = await request.read()
        span = request.headers["Content-Range"].removeprefix("bytes ").partition("/")[0]
        if session.done is None and span != "*":
            refusal = self._take(session, body, span)
            if refusal is not None:
                return refusal
        if session.done is not None:
            return web.json_response(self._resource(request, session.done))
        held = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
        return web.Response(status=308, headers=held)

    def _take(self, session: Session, body: bytes, span: str) -> web.Response | None:
        first, last = (int(part) for part in span.split("-"))
        whole = last + 1 == session.size_bytes
        if first != len(session.data) or last + 1 - first != len(body):
            return web.Response(status=503, text="these bytes do not follow those that are here")
        if not whole and len(body) % STEP:
            return web.Response(status=400, text="a chunk is a multiple of 256 KiB")
        kept = len(body) if self.persists is None else min(self.persists, len(body))
        session.data += body[:kept]
        if len(session.data) == session.size_bytes:
            data = bytes(session.data)
            session.done = self._store(session.bucket, session.query, session.resource, data)
        return None

    def _store(self, bucket: str, query: dict, resource: dict, data: bytes) -> Stored:
        name = resource["name"]
        self._meet(query, self.objects.get((bucket, name)))
        if resource.get("crc32c", crc32c(data)) != crc32c(data):
            raise web.HTTPBadRequest(text="the CRC32C is not that of the bytes")
        key = query.get("kmsKeyName", "") if self.keys is not None else ""
        if key and key not in self.keys:
            said = "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been authorized to use this key."
            raise web.HTTPForbidden(text=_error(403, said))
        stored = Stored(name, data, resource.get("metadata") or {}, key)
        self.objects[bucket, name] = stored
        return stored

    def _meet(self, query: dict, found: Stored | None) -> None:
        expected = query.get("ifGenerationMatch")
        if expected is not None and int(expected) != (found.generation if found else 0):
            raise web.HTTPPreconditionFailed(text=_error(412, "conditionNotMet"))

    def _find(self, request: web.Request) -> Stored:
        bucket, name = self._bucket(request), request.match_info["name"]
        if (bucket, name) not in self.objects:
            raise web.HTTPNotFound(text=_error(404, f"No such object: {bucket}/{name}"))
        return self.objects[bucket, name]

    def _bucket(self, request: web.Request) -> str:
        name = request.match_info["bucket"]
        if name not in self.buckets:
            raise web.HTTPNotFound(text=_error(404, "The specified bucket does not exist."))
        return name

    def _resource(self, request: web.Request, stored: Stored) -> dict:
        return {
            "kind": "storage#object",
            "bucket": request.match_info["bucket"],
            "name": stored.name,
            "generation": str(stored.generation),
            "metageneration": "1",
            "size": str(len(stored.data)),
            "crc32c": crc32c(stored.data),
            "metadata": stored.metadata,
            "updated": stored.updated,
            "timeCreated": stored.updated,
            **({"kmsKeyName": f"{stored.key}/cryptoKeyVersions/1"} if stored.key else {}),
        }


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def _error(status: int, message: str) -> str:
    return json.dumps({"error": {"code": status, "message": message, "errors": []}})


def _related(body: bytes, content_type: str) -> tuple[dict, bytes]:
    boundary = content_type.partition("boundary=")[2].strip("\"'").encode()
    _, resource, data, _ = body.split(b"--" + boundary)
    texts = [part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in (resource, data)]
    return json.loads(texts[0]), texts[1]


def build_app(server: GoogleServer) -> web.Application:
    app = web.Application(client_max_size=BODY_MAX)
    objects = "/storage/v1/b/{bucket}/o"
    app.router.add_get(objects, server.list)
    app.router.add_get(objects + "/{name:.+}", server.look)
    app.router.add_delete(objects + "/{name:.+}", server.delete)
    app.router.add_get("/download" + objects + "/{name:.+}", server.download)
    app.router.add_post("/upload" + objects, server.begin)
    app.router.add_put("/upload" + objects, server.go_on)
    return app


@contextmanager
def google_server():
    """The server, in a thread of its own."""
    loop, started, server = asyncio.new_event_loop(), Future(), GoogleServer()

    async def serve():
        runner = web.AppRunner(build_app(server), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        started.set_result(runner)

    def live():
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    runner = started.result(60)
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
