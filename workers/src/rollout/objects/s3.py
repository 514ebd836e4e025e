"""Objects in an S3 bucket, or in anything that speaks its protocol. The only importer of boto3.

Credentials come from the standard AWS chain alone (environment, profile, container or instance role)
and are never written or logged here. Every write carries a SHA-256 that the server checks, and is
conditional: an object that is there is never replaced. What is retried, and how often, is decided by
``rollout.objects.remote``; boto3's own retries are off.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from rollout.errors import SpecError
from rollout.objects.named.bucket import NamedState, Page
from rollout.objects.named.contract import NamedEntry, NamedObject
from rollout.objects.remote import Bucket, require_encrypted
from rollout.objects.retry import Absent, Operation, Patience, Refused, Transient, Unmet, persist
from rollout.objects.source import Source

try:
    import boto3
    from botocore import exceptions as trouble
    from botocore.config import Config
except ImportError as error:
    raise SpecError(
        "s3:// needs boto3, which is not installed; pip install 'rollout-rl[s3]'"
    ) from error

logging.getLogger("botocore").setLevel(logging.WARNING)

PART_BYTES = 16 << 20
MULTIPART_BYTES = 64 << 20
"""Larger objects go up in parts of ``PART_BYTES``, or larger ones where there would be too many."""
PARTS_MAX = 10_000
PAGE_MAX = 1000
PARTS_AT_ONCE = 4
"""With ``PART_BYTES`` the memory that an upload takes."""
CHUNK_BYTES = 1 << 18
"""Small enough that a slow answer is noticed."""
CONNECT_SECONDS, READ_SECONDS = 10, 30
MESSAGE_CHARACTERS_MAX = 500
"""Amazon names who may not do what to which resource, and why, in as many."""

AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
DAMAGED_ON_THE_WAY = frozenset(
    {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
    | {"RequestTimeout", "IncompleteBody", "KMS.ThrottlingException"}
)
PRECONDITION_FAILED, NOT_IMPLEMENTED = 412, 501
NO_VERSION = "null"
"""What a bucket that has stopped keeping versions calls the only one."""
WRITER = "rollout-writer"
"""Metadata of a named object: which write it came from."""
NO_CONDITIONS = "use a server that keeps If-None-Match and If-Match, or another place"
BY_KMS = "aws:kms"
KEY_DENIED = "grant it in the identity's policy and the key's (rollout cloud policy --for FILE)"
NO_ACCESS = "see the credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID or a role) and the bucket's policy"
FIXES = {
    "NoSuchBucket": "make the bucket, or correct its name (spec.storage.uri, --to)",
    "PermanentRedirect": "name the bucket's region (spec.storage.region, --region)",
    "RequestTimeTooSkewed": "set this machine's clock",
    "KMS.DisabledException": "enable the key (spec.storage.kmsKey, or the bucket's own)",
    "KMS.NotFoundException": "name a key of the bucket's own region that exists (spec.storage.kmsKey, or the bucket's own)",
    "KMS.KMSInvalidStateException": "the key is disabled or being deleted: enable it, or name another (spec.storage.kmsKey)",
}
UNSET = (trouble.NoCredentialsError, trouble.PartialCredentialsError, trouble.ProfileNotFound)

T = TypeVar("T")


class S3Remote:
    """One prefix of one bucket. Thread-safe."""

    def __init__(self, bucket: Bucket, patience: Patience | None = None) -> None:
        self._bucket = bucket
        self._patience = patience or Patience()
        self._client = _connect(bucket)
        self._conditional = {"IfNoneMatch": "*"}
        self._encrypted = {} if bucket.kms_key is None else _encryption(bucket.kms_key)

    @property
    def place(self) -> str:
        """``s3://bucket/prefix``, with the server where it is not the cloud's own."""
        return self._bucket.place

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when it is not there."""
        try:
            return call(lambda: self._client.head_object(**self._at(key)))["ContentLength"]
        except Absent:
            return None

    @contextmanager
    def read(self, key: str, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Bytes ``[start, stop)`` as they arrive."""
        span = f"bytes={start}-{stop - 1}"
        body = call(lambda: self._client.get_object(**self._at(key), Range=span))["Body"]
        try:
            with _translated():
                yield body.iter_chunks(CHUNK_BYTES)
        finally:
            body.close()

    def write(self, key: str, source: Source) -> None:
        """Store whole: in one request, or in parts that become visible together."""
        try:
            self._write(key, source)
        except _NotImplemented:
            # Some servers know no conditional writes; by content-addressed names nothing is lost.
            self._conditional = {}
            self._write(key, source)

    def delete(self, key: str) -> None:
        """Remove; a no-op when it is not there."""
        call(lambda: self._client.delete_object(**self._at(key)))

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with ``prefix``, a page of a thousand at a time."""
        begin, pages = self._at(prefix), self._client.get_paginator("list_objects_v2")
        skipped = len(begin["Key"]) - len(prefix)
        with _translated():
            found = pages.paginate(Bucket=begin["Bucket"], Prefix=begin["Key"])
            return [item["Key"][skipped:] for page in found for item in page.get("Contents", ())]

    def look(self, key: str) -> NamedState:
        """The object's tag (its ETag) and writer. Raises Absent."""
        found = call(lambda: self._client.head_object(**self._at(key)))
        writer = found.get("Metadata", {}).get(WRITER, "")
        return NamedState(tag=found["ETag"], writer=writer, size_bytes=found["ContentLength"])

    def find_hold(self, key: str) -> str:
        """Versions or a lock, by which bytes outlive their deletion. Raises Absent."""
        found = call(lambda: self._client.head_object(**self._at(key)))
        if found.get("ObjectLockMode"):
            return (
                f"its objects are locked ({found['ObjectLockMode']}, until"
                f" {found['ObjectLockRetainUntilDate']:%Y-%m-%d}): what a run deletes stays, and is paid for, until then"
            )
        if found.get("VersionId", NO_VERSION) != NO_VERSION:
            return (
                "it keeps versions: what a run deletes stays, and is paid for, until a lifecycle rule removes it"
                " (NoncurrentVersionExpiration, and ExpiredObjectDeleteMarker)"
            )
        return ""

    def read_named(self, key: str, size_max: int) -> NamedObject | int:
        """Bytes and tag of one answer, or its size where that is larger. Raises Absent."""
        with _translated():
            found = self._client.get_object(**self._at(key), ChecksumMode="ENABLED")
            with closing(found["Body"]) as body:
                if found["ContentLength"] > size_max:
                    return int(found["ContentLength"])
                return NamedObject(data=body.read(), tag=found["ETag"])

    def write_named(self, key: str, data: bytes, tag: str | None, writer: str) -> str:
        """Store while the object is the one of ``tag``; the new tag. Raises Unmet."""
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            checksum = _sha256(iter([data]))
            return self._put(key, data, checksum, Metadata={WRITER: writer}, **condition)["ETag"]
        except _NotImplemented as error:
            raise Refused(str(error), NO_CONDITIONS) from error

    def delete_named(self, key: str, tag: str) -> None:
        """Remove the object of ``tag``: looked at first, for servers that delete whatever is there."""
        found = self.look(key).tag
        if found != tag:
            raise Unmet(f"its tag is {found}")
        try:
            call(lambda: self._client.delete_object(**self._at(key), IfMatch=tag))
        except _NotImplemented as error:
            raise Refused(str(error), NO_CONDITIONS) from error

    def page(self, prefix: str, after: str | None) -> Page:
        """A thousand objects at most."""
        begin = self._at(prefix)
        skipped = len(begin["Key"]) - len(prefix)
        more = {} if after is None else {"ContinuationToken": after}
        found = call(
            lambda: self._client.list_objects_v2(
                Bucket=begin["Bucket"], Prefix=begin["Key"], MaxKeys=PAGE_MAX, **more
            )
        )
        entries = [_entry(item, skipped) for item in found.get("Contents", ())]
        return Page(entries=tuple(entries), next=found.get("NextContinuationToken"))

    def _at(self, key: str) -> dict[str, str]:
        prefix = f"{self._bucket.prefix}/" if self._bucket.prefix else ""
        return {"Bucket": self._bucket.name, "Key": f"{prefix}{key}"}

    def _require_encrypted(self, answer: Any, remove: Callable[[], None] | None = None) -> None:
        is_encrypted = answer.get("ServerSideEncryption") == BY_KMS
        require_encrypted(self._bucket, is_encrypted=is_encrypted, remove=remove)

    def _write(self, key: str, source: Source) -> None:
        with suppress(Unmet):
            if source.size_bytes > MULTIPART_BYTES:
                self._write_parts(key, source)
            else:
                self._write_whole(key, source)

    def _write_whole(self, key: str, source: Source) -> None:
        with source.open() as body:
            checksum = _sha256(iter(lambda: body.read(CHUNK_BYTES), b""))
            body.seek(0)
            size = source.size_bytes
            self._put(key, body, checksum, ContentLength=size, **self._conditional)

    def _put(self, key: str, body: Any, checksum: str, **options: Any) -> Any:
        given = {**self._at(key), **self._encrypted, **options, "ChecksumSHA256": checksum}
        put = self._client.put_object
        done = call(lambda: put(Body=body, ChecksumAlgorithm="SHA256", **given))
        self._require_encrypted(done, lambda: self.delete(key))
        return done

    def _write_parts(self, key: str, source: Source) -> None:
        at = self._at(key)
        begun = call(
            lambda: self._client.create_multipart_upload(
                **at, ChecksumAlgorithm="SHA256", **self._encrypted
            )
        )
        at_upload = {**at, "UploadId": begun["UploadId"]}
        try:
            self._require_encrypted(begun)
            parts = self._send_parts(at_upload, source)
            call(
                lambda: self._client.complete_multipart_upload(
                    **at_upload, MultipartUpload={"Parts": parts}, **self._conditional
                )
            )
        except BaseException:
            # Nothing was visible; what could not be cleared is the bucket's lifecycle rule's.
            with suppress(Transient, Refused, Absent):
                call(lambda: self._client.abort_multipart_upload(**at_upload))
            raise

    def _send_parts(self, at_upload: dict[str, str], source: Source) -> list[dict[str, Any]]:
        size = max(PART_BYTES, -(-source.size_bytes // PARTS_MAX))
        starts = range(0, source.size_bytes, size)

        def send(number: int) -> dict[str, Any]:
            with source.open() as reader:
                reader.seek(starts[number - 1])
                data = reader.read(size)
            operation = Operation(
                verb=f"store part {number} of", digest=at_upload["Key"], place=self.place
            )
            return persist(self._patience, operation, lambda: self._send(at_upload, number, data))

        with ThreadPoolExecutor(max_workers=PARTS_AT_ONCE) as pool:
            return list(pool.map(send, range(1, len(starts) + 1)))

    def _send(self, at_upload: dict[str, str], number: int, data: bytes) -> dict[str, Any]:
        checksum = _sha256(iter([data]))
        sent = call(
            lambda: self._client.upload_part(
                **at_upload,
                PartNumber=number,
                Body=data,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=checksum,
            )
        )
        return {"PartNumber": number, "ETag": sent["ETag"], "ChecksumSHA256": checksum}


def _entry(item: Any, skipped: int) -> NamedEntry:
    return NamedEntry(
        name=item["Key"][skipped:],
        tag=item["ETag"],
        size_bytes=item["Size"],
        modified_seconds=item["LastModified"].timestamp(),
    )


class _NotImplemented(Exception):  # noqa: N818 - a state
    """The server does not know what was asked for."""


def _connect(bucket: Bucket) -> Any:
    """A client. Path-style addresses where the server is named: such servers seldom have wildcard DNS."""
    return open_service(
        "s3",
        bucket.place,
        endpoint=bucket.endpoint,
        region=bucket.region,
        max_pool_connections=2 * PARTS_AT_ONCE,
        s3={"addressing_style": "path" if bucket.endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def find_way() -> str:
    """How Amazon's standard chain comes to credentials here, in botocore's words; empty where it finds none.

    Raises Refused and Transient where what it finds cannot be read.
    """
    with _translated():
        found = boto3.Session().get_credentials()
        return "" if found is None else str(found.method)


def ask_caller(region: str | None) -> str:
    """The ARN that the credentials here speak for (STS GetCallerIdentity, which needs no permission).

    Raises SpecError, Refused and Transient.
    """
    client = open_service("sts", "STS", region=region)
    return str(call(client.get_caller_identity)["Arn"])


def open_service(
    name: str, place: str, *, endpoint: str | None = None, region: str | None = None, **options: Any
) -> Any:
    """A client of one of Amazon's services, whose own retries are off; ``place`` is what errors name. Raises SpecError."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"total_max_attempts": 1},
        **options,
    )
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    try:
        session: Any = boto3.Session()
        return session.client(
            name,
            endpoint_url=endpoint,
            region_name=region or ("us-east-1" if endpoint else None),
            config=config,
        )
    except (trouble.BotoCoreError, ValueError) as error:
        raise SpecError(f"{place}: no client of Amazon's can be made: {error}") from error


def call(ask: Callable[[], T]) -> T:
    """What Amazon answers. Raises Refused, Absent, Transient and Unmet."""
    with _translated():
        return ask()


@contextmanager
def _translated() -> Iterator[None]:
    """Speak of what S3 said in the words of ``rollout.objects.retry``."""
    try:
        yield
    except trouble.ClientError as error:
        raise _translate(error) from error
    except UNSET as error:
        raise Refused(f"no credentials ({error})", NO_ACCESS) from error
    except (trouble.BotoCoreError, OSError) as error:
        raise Transient(_short(f"{type(error).__name__}: {error}")) from error


def _translate(error: Any) -> Exception:
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = _short(f"HTTP {status} {code}: {answer.get('Error', {}).get('Message', '')}")
    if status == PRECONDITION_FAILED:
        return Unmet(said)
    if status == NOT_IMPLEMENTED:
        return _NotImplemented(said)
    if code in FIXES:
        return Refused(said, FIXES[code])
    if code in {"NoSuchKey", "404", "NotFound"}:
        return Absent(said)
    if status in AGAIN or code in DAMAGED_ON_THE_WAY or code == "NoSuchUpload":
        return Transient(said)
    return Refused(said, KEY_DENIED if "kms:" in said else NO_ACCESS)


def _encryption(key: str) -> dict[str, Any]:
    """One data key for many objects (a bucket key): KMS is asked, and paid, seldom."""
    return {"ServerSideEncryption": BY_KMS, "SSEKMSKeyId": key, "BucketKeyEnabled": True}


def _short(text: str) -> str:
    return text[:MESSAGE_CHARACTERS_MAX]


def _sha256(chunks: Iterator[bytes]) -> str:
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk)
    return base64.b64encode(hasher.digest()).decode()
