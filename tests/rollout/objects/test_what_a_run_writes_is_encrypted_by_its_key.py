"""``storage.kmsKey``: every object of a run is written under the key, and a key that cannot be used is named before anything is trained."""

from __future__ import annotations

import boto3
import objects_kit as kit
import pytest

from rollout.errors import PlaceUnreachable, StoreError
from rollout.objects import gcs, s3
from rollout.objects.opening import open_place, require_place
from rollout.objects.places import open_named
from rollout.objects.source import PartsSource
from rollout_api.v1alpha1.storage import Storage

GOOGLE_KEY = "projects/a-project/locations/eu/keyRings/runs/cryptoKeys/research"
AMAZON_KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def storage(uri, endpoint, key):
    return Storage.model_validate({"uri": uri, "endpoint": endpoint, "kmsKey": key})


def write_all(place: Storage, folder) -> None:
    """What a run writes: an object, a large one, a named one that is replaced."""
    store = open_place(place, "uid-1", folder)
    store.put(b"weights")
    store._remote.write("large", PartsSource([b"x" * (1 << 20)] * 2))
    named = open_named(
        f"{place.uri}/uid-1", endpoint=place.endpoint, kms_key=place.kms_key, patience=kit.QUICK
    )
    tag = named.create("snapshots/one", b"one")
    named.replace("snapshots/one", b"two", tag)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 1 << 20)
    monkeypatch.setattr(gcs, "PART_BYTES", 1 << 20)


@pytest.mark.process
def test_amazon_keeps_all_of_it_under_the_key(s3_endpoint, bucket, tmp_path, small_parts):
    kms = boto3.client("kms", endpoint_url=s3_endpoint, region_name="us-east-1")
    key = kms.create_key()["KeyMetadata"]["Arn"]
    place = storage(f"s3://{bucket}/team", s3_endpoint, key)
    assert require_place(place) == ""
    write_all(place, tmp_path)
    client = kit.s3_client(s3_endpoint)
    names = [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]]
    found = [client.head_object(Bucket=bucket, Key=name) for name in names]
    assert len(names) == 3
    assert {one["ServerSideEncryption"] for one in found} == {"aws:kms"}
    assert {one["SSEKMSKeyId"] for one in found} == {key}


@pytest.mark.process
def test_without_a_key_it_is_the_buckets_affair(s3_endpoint, bucket, tmp_path):
    write_all(storage(f"s3://{bucket}/team", s3_endpoint, None), tmp_path)
    client = kit.s3_client(s3_endpoint)
    for one in client.list_objects_v2(Bucket=bucket)["Contents"]:
        assert "SSEKMSKeyId" not in client.head_object(Bucket=bucket, Key=one["Key"])


def test_google_keeps_all_of_it_under_the_key(
    google, google_bucket, tmp_path, small_parts, monkeypatch
):
    monkeypatch.setattr(google, "keys", {GOOGLE_KEY})
    place = storage(f"gs://{google_bucket}/team", google.url, GOOGLE_KEY)
    assert require_place(place) == ""
    write_all(place, tmp_path)
    kept = [one for (where, _), one in google.objects.items() if where == google_bucket]
    assert len(kept) == 3
    assert {one.key for one in kept} == {GOOGLE_KEY}


REFUSALS = [
    (400, "KMS.DisabledException", "is disabled", "enable the key"),
    (400, "KMS.NotFoundException", "Invalid arn eu-west-1", "of the bucket's own region"),
    (400, "KMS.KMSInvalidStateException", "pending deletion", "being deleted"),
    (403, "AccessDenied", "User: x is not authorized to perform: kms:GenerateDataKey on resource: k", "and the key's"),
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(("status", "code", "said", "fix"), REFUSALS)
def test_a_key_of_amazons_that_cannot_be_used_is_named_with_its_fix(
    s3_endpoint, bucket, status, code, said, fix
):
    body = f"<Error><Code>{code}</Code><Message>{said}</Message></Error>".encode()
    answer = kit.Answer(status, [("Content-Type", "application/xml")], body)
    with kit.proxy_before(s3_endpoint) as proxy:
        proxy.next(lambda asked, pass_on: answer, "PUT", times=9)
        with pytest.raises(PlaceUnreachable, match=f"write.*{fix}"):
            require_place(storage(f"s3://{bucket}/team", proxy.url, AMAZON_KEY))


def test_a_key_of_googles_that_may_not_be_used_is_named_with_its_fix(google, google_bucket):
    with pytest.raises(PlaceUnreachable, match=r"write.*cryptoKeyEncrypterDecrypter"):
        require_place(storage(f"gs://{google_bucket}/team", google.url, GOOGLE_KEY))


def test_a_server_that_knows_no_keys_is_refused_and_never_taken_for_encrypted(
    google, google_bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr(google, "keys", None)
    place = storage(f"gs://{google_bucket}/team", google.url, GOOGLE_KEY)
    with pytest.raises(PlaceUnreachable, match="does not encrypt by the key"):
        require_place(place)
    with pytest.raises(StoreError, match="does not encrypt by the key"):
        open_place(place, "uid-1", tmp_path).put(b"weights")
    assert google.names(google_bucket) == []


@pytest.mark.process
def test_a_server_of_s3s_protocol_that_knows_no_keys_is_refused(s3_endpoint, bucket):
    def forgets(asked, pass_on):
        answer = pass_on()
        answer.headers = [one for one in answer.headers if "encryption" not in one[0].lower()]
        return answer

    with kit.proxy_before(s3_endpoint) as proxy:
        proxy.next(forgets, "PUT", times=9)
        with pytest.raises(PlaceUnreachable, match="does not encrypt by the key"):
            require_place(storage(f"s3://{bucket}/team", proxy.url, AMAZON_KEY))
    assert "Contents" not in kit.s3_client(s3_endpoint).list_objects_v2(Bucket=bucket)
