from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "snapshots"))
sys.path.append(str(Path(__file__).parents[1] / "ledger"))

import gcs_kit
import objects_kit as kit

from rollout.objects.filesystem import FilesystemStore
from rollout.seams import ObjectStore


@pytest.fixture(scope="session")
def credentials():
    with pytest.MonkeyPatch.context() as patch:
        kit.set_credentials(patch)
        yield


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory, credentials):
    with kit.s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint):
    name = f"b-{uuid.uuid4().hex[:16]}"
    kit.s3_client(s3_endpoint).create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def google():
    with gcs_kit.google_server() as server:
        yield server


@pytest.fixture
def google_bucket(google):
    name = f"b-{uuid.uuid4().hex[:16]}"
    google.buckets.add(name)
    return name


@pytest.fixture(scope="session")
def versity_endpoint(tmp_path_factory, credentials):
    with kit.versity_server(tmp_path_factory.mktemp("versitygw")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def fake_gcs_endpoint(tmp_path_factory):
    with kit.fake_gcs_server(tmp_path_factory.mktemp("fake-gcs-server")) as endpoint:
        yield endpoint


@dataclass(frozen=True)
class Bucket:
    """An empty one of its own; ``uri`` is ``s3://NAME`` or ``gs://NAME``."""

    uri: str
    endpoint: str

    @property
    def scheme(self) -> str:
        return self.uri.partition(":")[0]

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]


@pytest.fixture
def new_bucket(request):
    """Makes a bucket at one of ``SERVERS``, by its name."""

    def make(server: str) -> Bucket:
        name = f"b-{uuid.uuid4().hex[:16]}"
        if server == "gs":
            google = request.getfixturevalue("google")
            google.buckets.add(name)
            return Bucket(f"gs://{name}", google.url)
        if server == "fake-gcs-server":
            endpoint = request.getfixturevalue("fake_gcs_endpoint")
            kit.google_client(endpoint).create_bucket(name)
            return Bucket(f"gs://{name}", endpoint)
        fixture = {"s3": "s3_endpoint", "versitygw": "versity_endpoint"}[server]
        endpoint = request.getfixturevalue(fixture)
        kit.s3_client(endpoint).create_bucket(Bucket=name)
        return Bucket(f"s3://{name}", endpoint)

    return make


@dataclass
class Place:
    """One place of objects: ``open`` gives another process's view, ``damage`` changes what is kept there."""

    open: Callable[[], ObjectStore]
    damage: Callable[[str, bytes], None]
    list: Callable[[], list[str]]


def folder_place(root: Path) -> Place:
    def damage(digest, data):
        path = root / "blake3" / digest[7:9] / digest[7:]
        path.chmod(0o644)
        path.write_bytes(data)

    def names():
        return [p.name for p in root.rglob("*") if p.is_file()]

    return Place(open=lambda: FilesystemStore(root), damage=damage, list=names)


def bucket_place(bucket: Bucket, folder: Path) -> Place:
    """As another client of the server sees it: Amazon's or Google's own."""
    client = kit.s3_client(bucket.endpoint) if bucket.scheme == "s3" else None
    google = kit.google_client(bucket.endpoint).bucket(bucket.name) if client is None else None

    def damage(digest, data):
        name = f"runs/one/blake3/{digest[7:9]}/{digest[7:]}"
        if client is None:
            google.blob(name).upload_from_string(data)
        else:
            client.put_object(Bucket=bucket.name, Key=name, Body=data)

    def names():
        if client is None:
            return [blob.name.rpartition("/")[2] for blob in google.list_blobs()]
        found = client.list_objects_v2(Bucket=bucket.name).get("Contents", [])
        return [item["Key"].rpartition("/")[2] for item in found]

    def open_another():
        where = folder / uuid.uuid4().hex
        return kit.bucket_store(f"{bucket.uri}/runs/one", bucket.endpoint, where)

    return Place(open=open_another, damage=damage, list=names)


@pytest.fixture(params=["folder", "coordinator", *kit.SERVERS])
def place(request, new_bucket, tmp_path):
    root = tmp_path / "objects"
    with ExitStack() as stack:
        if request.param not in ("folder", "coordinator"):
            yield bucket_place(new_bucket(request.param), tmp_path / "caches")
            return
        local = folder_place(root)
        if request.param == "coordinator":
            url = stack.enter_context(kit.object_service(FilesystemStore(root)))
            local.open = lambda: kit.served_store(url, tmp_path / uuid.uuid4().hex)
        yield local


@pytest.fixture
def store(place):
    return place.open()
