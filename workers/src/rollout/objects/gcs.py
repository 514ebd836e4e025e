"""Google Cloud Storage, by google-cloud-storage: the only module that imports it.

Credentials come from the standard chain (application default credentials); they are never passed through a manifest
and never logged here. Every write has a precondition on the object's generation and a CRC32C that the server checks.
What is retried, and how often, is decided by ``rollout.objects.remote``; the client's own retries are off, but for
the chunks of a large upload, each of which is gone on with where the server says that it ended.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode

from rollout.errors import SpecError
from rollout.objects.named.bucket import NamedState, Page
from rollout.objects.named.contract import NamedEntry, NamedObject
from rollout.objects.remote import Bucket, require_encrypted
from rollout.objects.retry import Absent, Operation, Patience, Refused, Transient, Unmet, persist
from rollout.objects.source import Source

os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
"""Else the client asks for the bucket itself in threads of its own, with a right that a prefix's credentials lack."""

try:
    import google.auth
    import google_crc32c
    from google.api_core import exceptions as api
    from google.auth import exceptions as access
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession, Request
    from google.cloud import storage
    from google.resumable_media import InvalidResponse
    from google.resumable_media.requests import ResumableUpload
    from requests import RequestException, Response
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise SpecError(
        "gs:// needs google-cloud-storage, which is not installed; pip install 'rollout-rl[gcs]'"
    ) from error

logging.getLogger("google").setLevel(logging.WARNING)

CHUNK_BYTES = 1 << 18
"""Small enough that a slow answer is noticed."""
PART_BYTES = 16 << 20
"""Larger objects go up in a session of chunks of this size; with the source it is the memory that an upload takes."""
CONNECTIONS_MAX = 16
PAGE_MAX = 1000
TIMEOUTS = (10.0, 30.0)
"""Seconds until a connection stands, and between two pieces of an answer."""
MESSAGE_CHARACTERS_MAX = 500
REQUEST = re.compile(r"^[A-Z]+ https?://\S+: ")
"""What Google's client puts before what Google said."""
WRITER = "rollout-writer"
SCOPES = "https://www.googleapis.com/auth"
SCOPE = f"{SCOPES}/devstorage.read_write"

AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
GONE = frozenset({404, 410})
PRECONDITION_FAILED, OK, RESUME = 412, 200, 308
NO_ACCESS = "see the credentials (GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or a workload's identity) and the bucket's policy"
KEEPS = "take a bucket without a retention policy or holds: a run deletes what it needs no more"
KEY_DENIED = "give the storage service agent of the bucket's project roles/cloudkms.cryptoKeyEncrypterDecrypter at the key, enable the key, and name one of the bucket's own location (spec.storage.kmsKey)"
NO_BUCKET = "make the bucket, or correct its name (spec.storage.uri, --to)"

T = TypeVar("T")


class GcsRemote:
    """One prefix of one bucket. Thread-safe."""

    def __init__(self, bucket: Bucket, patience: Patience | None = None) -> None:
        self._place = bucket
        self._patience = patience or Patience()
        self._session, self._client, self._endpoint = _connect(bucket)
        self._bucket = self._client.bucket(bucket.name)

    @property
    def place(self) -> str:
        """``gs://bucket/prefix``, with the server where it is not the cloud's own."""
        return self._place.place

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when it is not there."""
        try:
            return int(self._reload(key).size)
        except Absent:
            return None

    @contextmanager
    def read(self, key: str, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Bytes ``[start, stop)`` as they arrive."""
        with self._get(key, {"Range": f"bytes={start}-{stop - 1}"}) as answer, _translated():
            yield answer.raw.stream(CHUNK_BYTES, decode_content=False)

    def write(self, key: str, source: Source) -> None:
        """Store whole: in one request, or in a session whose last chunk makes the object visible."""
        try:
            with source.open() as body:
                if source.size_bytes > PART_BYTES:
                    self._write_chunks(key, source.size_bytes, body)
                else:
                    self._write_whole(key, body.read(), "0", {})
        except Unmet:
            return  # it is there
        except _SessionLost as error:
            raise Transient(str(error)) from error

    def delete(self, key: str) -> None:
        """Remove; a no-op when it is not there."""
        try:
            self._delete(key, None)
        except Absent:
            return

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with ``prefix``, a page of a thousand at a time."""
        found: list[str] = []
        after: str | None = None
        while True:
            page = self.page(prefix, after)
            found += [entry.name for entry in page.entries]
            after = page.next
            if after is None:
                return found

    def look(self, key: str) -> NamedState:
        """The object's tag (its generation) and writer. Raises Absent."""
        found = self._reload(key)
        writer = (found.metadata or {}).get(WRITER, "")
        return NamedState(tag=str(found.generation), writer=writer, size_bytes=int(found.size))

    def find_hold(self, key: str) -> str:
        """A retention policy, by which nothing can be deleted yet. Raises Absent."""
        until = self._reload(key).retention_expiration_time
        if until is None:
            return ""
        return f"it keeps objects until a time (retention policy, this one {until:%Y-%m-%d}): a run could delete nothing"

    def read_named(self, key: str, size_max: int) -> NamedObject | int:
        """Bytes and tag of one answer, or its size where that is larger. Raises Absent."""
        with self._get(key, {}) as answer, _translated():
            size = int(answer.headers["Content-Length"])
            if size > size_max:
                return size
            data = answer.raw.read(size + 1, decode_content=False)
            if (
                len(data) != size
                or f"crc32c={_crc32c([data])}" not in answer.headers["x-goog-hash"]
            ):
                raise Transient(f"{len(data)} of {size} bytes, or not those that are stored")
            return NamedObject(data=data, tag=answer.headers["x-goog-generation"])

    def write_named(self, key: str, data: bytes, tag: str | None, writer: str) -> str:
        """Store while the object is the one of ``tag``; the new tag. Raises Unmet."""
        return self._write_whole(key, data, tag or "0", {WRITER: writer})

    def delete_named(self, key: str, tag: str) -> None:
        """Remove the object of ``tag``. Raises Absent or Unmet."""
        self._delete(key, int(tag))

    def page(self, prefix: str, after: str | None) -> Page:
        """A thousand objects at most."""
        begin = self._name(prefix)
        skipped = len(begin) - len(prefix)
        with _translated():
            found = self._client.list_blobs(
                self._bucket,
                prefix=begin,
                page_token=after,
                page_size=PAGE_MAX,
                timeout=TIMEOUTS,
                retry=None,
            )
            entries = tuple(_entry(blob, skipped) for blob in next(found.pages, ()))
        return Page(entries=entries, next=found.next_page_token)

    def _name(self, key: str) -> str:
        return f"{self._place.prefix}/{key}" if self._place.prefix else key

    def _reload(self, key: str) -> Any:
        blob = self._bucket.blob(self._name(key))
        _call(lambda: blob.reload(timeout=TIMEOUTS, retry=None))
        if blob.size is None or blob.generation is None:
            raise Transient("an answer without size and generation")
        return blob

    def _delete(self, key: str, generation: int | None) -> None:
        _call(
            lambda: self._bucket.delete_blob(
                self._name(key), if_generation_match=generation, timeout=TIMEOUTS, retry=None
            )
        )

    def _write_whole(self, key: str, data: bytes, tag: str, metadata: dict[str, str]) -> str:
        blob = self._bucket.blob(self._name(key), kms_key_name=self._place.kms_key)
        blob.metadata = metadata
        _call(
            lambda: blob.upload_from_string(
                data,
                content_type="application/octet-stream",
                if_generation_match=int(tag),
                checksum="crc32c",
                timeout=TIMEOUTS,
                retry=None,
            )
        )
        kept = bool(blob.kms_key_name)
        require_encrypted(self._place, is_encrypted=kept, remove=lambda: self.delete(key))
        return str(blob.generation)

    def _write_chunks(self, key: str, size_bytes: int, body: BinaryIO) -> None:
        metadata = {"crc32c": _crc32c(iter(lambda: body.read(CHUNK_BYTES), b""))}
        body.seek(0)
        query = {"uploadType": "resumable", "name": self._name(key), "ifGenerationMatch": "0"}
        query |= {"kmsKeyName": self._place.kms_key} if self._place.kms_key else {}
        url = f"{self._endpoint}/upload/storage/v1/b/{quote(self._place.name, safe='')}/o"
        upload = ResumableUpload(f"{url}?{urlencode(query)}", PART_BYTES)
        upload.initiate(self, body, metadata, "application/octet-stream", size_bytes)
        while not self._send(upload, body, key):
            pass

    def _send(self, upload: ResumableUpload, body: BinaryIO, key: str) -> bool:
        """One chunk, gone on with where a broken one ended; whether it was the last."""
        tries = 0

        def attempt() -> bool:
            nonlocal tries
            tries += 1
            try:
                if tries > 1:
                    upload.recover(self)
                body.seek(upload.bytes_uploaded)  # a server may keep less of a chunk than was sent
                upload.transmit_next_chunk(self)
            except InvalidResponse as error:
                if error.response.status_code != OK:
                    raise Transient(_short(str(error))) from error
                return True  # an earlier try was the last one, and its answer was lost
            return upload.finished

        start = upload.bytes_uploaded
        operation = Operation(
            verb=f"store bytes from {start} of", digest=self._name(key), place=self.place
        )
        return persist(self._patience, operation, attempt)

    def request(
        self, method: str, url: str, data: Any = None, headers: Any = None, **_: Any
    ) -> Response:
        """A call of an upload's session. Raises Transient, Refused or Unmet for what is no success."""
        with _translated():
            answer = self._session.request(
                method, url, data=data, headers=headers, timeout=TIMEOUTS, max_allowed_time=None
            )
        if answer.status_code in {OK, RESUME}:
            return answer
        if method == "PUT" and answer.status_code in GONE:
            raise _SessionLost(f"HTTP {answer.status_code}: the upload's session is gone")
        raise _translate(answer.status_code, answer.text)

    @contextmanager
    def _get(self, key: str, headers: Mapping[str, str]) -> Iterator[Response]:
        """An answer whose body is not read yet."""
        name = quote(self._name(key), safe="")
        url = f"{self._endpoint}/download/storage/v1/b/{quote(self._place.name, safe='')}/o/{name}?alt=media"
        plain = {"Accept-Encoding": "identity", **headers}
        with _translated():
            answer = self._session.get(url, headers=plain, stream=True, timeout=TIMEOUTS)
        with answer:
            if not answer.ok:
                with _translated():
                    said = answer.raw.read(MESSAGE_CHARACTERS_MAX, decode_content=True)
                raise _translate(answer.status_code, said.decode(errors="replace"))
            yield answer


class _SessionLost(Exception):  # noqa: N818 - a state
    """The server has forgotten an upload that was under way: it begins anew."""


def _connect(bucket: Bucket) -> tuple[AuthorizedSession, storage.Client, str]:
    """One session for all calls. A server in plain HTTP is an emulator: it is given no credentials."""
    endpoint = bucket.endpoint or _emulator()
    try:
        if endpoint and endpoint.startswith("http://"):
            credentials, project = AnonymousCredentials(), None
        else:
            credentials, project = google.auth.default(scopes=[SCOPE])
        session = AuthorizedSession(credentials)
        session.mount("https://", HTTPAdapter(pool_maxsize=CONNECTIONS_MAX))
        session.mount("http://", HTTPAdapter(pool_maxsize=CONNECTIONS_MAX))
        options = {"api_endpoint": endpoint} if endpoint else None
        client = storage.Client(project=project, credentials=credentials, client_options=options)
    except access.GoogleAuthError as error:
        raise SpecError(
            f"{bucket.place}: no credentials ({_short(str(error))}); {NO_ACCESS}"
        ) from error
    return session, client, (endpoint or "https://storage.googleapis.com").rstrip("/")


def open_service(scope: str, *, is_anonymous: bool = False) -> Callable[..., bytes]:
    """Asks another of Google's services at a URL, with a document by POST. Both raise Refused, Transient; what is asked Absent, too."""
    with _translated():
        credentials = AnonymousCredentials()
        if not is_anonymous:
            credentials, _ = google.auth.default(scopes=[f"{SCOPES}/{scope}"])
        request = AuthorizedSession(credentials).request

    def ask(url: str, document: Mapping[str, Any] | None = None) -> bytes:
        method = "GET" if document is None else "POST"
        with _translated():
            answer = request(method, url, json=document, timeout=TIMEOUTS, allow_redirects=False)
        if not answer.ok:
            raise _translate(answer.status_code, answer.text)
        return answer.content

    return ask


def ask_caller() -> str:
    """The account that the credentials here speak for, after a token was had; a user's has no name.

    Raises Refused and Transient.
    """
    with _translated():
        credentials, _ = google.auth.default(scopes=[SCOPE])
        credentials.refresh(Request())
        name = getattr(credentials, "service_account_email", None)
        return name or f"a user or a federated identity ({type(credentials).__module__})"


def _emulator() -> str | None:
    """``STORAGE_EMULATOR_HOST``, as Google's own clients read it."""
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        return None
    return host if "://" in host else f"http://{host}"


def _entry(blob: Any, skipped: int) -> NamedEntry:
    return NamedEntry(
        name=blob.name[skipped:],
        tag=str(blob.generation),
        size_bytes=int(blob.size),
        modified_seconds=blob.updated.timestamp(),
    )


def _call(ask: Callable[[], T]) -> T:
    with _translated():
        return ask()


@contextmanager
def _translated() -> Iterator[None]:
    """Speak of what the client said in the words of ``rollout.objects.retry``."""
    try:
        yield
    except api.GoogleAPICallError as error:
        raise _translate(int(error.code or 0), REQUEST.sub("", error.message)) from error
    except access.GoogleAuthError as error:
        if error.retryable:
            raise Transient(_short(f"credentials cannot be had now: {error}")) from error
        raise Refused(_short(f"no credentials ({error})"), NO_ACCESS) from error
    except (RequestException, HTTPError, OSError, ValueError, KeyError) as error:
        raise Transient(_short(f"{type(error).__name__}: {error}")) from error


def _translate(status: int, message: str) -> Exception:
    said = _short(f"HTTP {status}: {message}")
    if status == PRECONDITION_FAILED:
        return Unmet(said)
    if status in GONE:
        no_bucket = "bucket does not exist" in message.lower()
        return Refused(said, NO_BUCKET) if no_bucket else Absent(said)
    if status in AGAIN:
        return Transient(said)
    if "retention" in message.lower() or "hold" in message.lower().split():
        return Refused(said, KEEPS)
    return Refused(said, KEY_DENIED if "kms" in message.lower() else NO_ACCESS)


def _short(text: str) -> str:
    return text[:MESSAGE_CHARACTERS_MAX]


def _crc32c(chunks: Any) -> str:
    """As Google writes it: base64 of the big-endian number."""
    checksum = google_crc32c.Checksum()
    for chunk in chunks:
        checksum.update(chunk)
    return base64.b64encode(checksum.digest()).decode()
