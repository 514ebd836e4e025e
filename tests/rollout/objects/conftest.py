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


def bucket_place(endpoint: str, bucket: str, folder: Path) -> Place:
    client = kit.s3_client(endpoint)

    def damage(digest, data):
        client.put_object(
            Bucket=bucket, Key=f"runs/one/blake3/{digest[7:9]}/{digest[7:]}", Body=data
        )

    def names():
        found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [item["Key"].rpartition("/")[2] for item in found]

    def open_another():
        return kit.s3_store(endpoint, bucket, folder / uuid.uuid4().hex)

    return Place(open=open_another, damage=damage, list=names)


def google_place(server: gcs_kit.GoogleServer, bucket: str, folder: Path) -> Place:
    def damage(digest, data):
        name = f"runs/one/blake3/{digest[7:9]}/{digest[7:]}"
        server.objects[bucket, name] = gcs_kit.Stored(name, data, {})

    def open_another():
        uri = f"gs://{bucket}/runs/one"
        return kit.bucket_store(uri, server.url, folder / uuid.uuid4().hex)

    return Place(
        open=open_another,
        damage=damage,
        list=lambda: [name.rpartition("/")[2] for name in server.names(bucket)],
    )


@pytest.fixture(
    params=["folder", "coordinator", "gs", pytest.param("s3", marks=pytest.mark.process)],
)
def place(request, tmp_path):
    root = tmp_path / "objects"
    with ExitStack() as stack:
        if request.param == "s3":
            endpoint = request.getfixturevalue("s3_endpoint")
            yield bucket_place(endpoint, request.getfixturevalue("bucket"), tmp_path / "caches")
            return
        if request.param == "gs":
            google, bucket = (request.getfixturevalue(one) for one in ("google", "google_bucket"))
            yield google_place(google, bucket, tmp_path / "caches")
            return
        local = folder_place(root)
        if request.param == "coordinator":
            url = stack.enter_context(kit.object_service(FilesystemStore(root)))
            local.open = lambda: kit.served_store(url, tmp_path / uuid.uuid4().hex)
        yield local


@pytest.fixture
def store(place):
    return place.open()
