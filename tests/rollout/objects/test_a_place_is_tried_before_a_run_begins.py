"""What a run will do to its place is done to it first: what is refused there, or stays there, is said before anything is trained."""

import errno
import json
import os
from datetime import UTC, datetime, timedelta

import objects_kit as kit
import pytest

from rollout.errors import PlaceUnreachable
from rollout.objects.gcs import GcsRemote
from rollout.objects.opening import require_place
from rollout.objects.places import open_bucket, parse_bucket
from rollout_api.v1alpha1.storage import Storage


def storage(uri, endpoint=None):
    return Storage.model_validate({"uri": uri, "endpoint": endpoint})


@pytest.fixture(params=kit.SERVERS)
def place(request, new_bucket):
    return new_bucket(request.param)


def test_one_that_lets_it_work_says_nothing_and_is_left_as_it_was(place):
    uri = f"{place.uri}/team"
    assert require_place(storage(uri, place.endpoint)) == ""
    remote = open_bucket(parse_bucket(uri, endpoint=place.endpoint))
    assert remote.keys("") == []


@pytest.mark.parametrize(
    ("method", "verb", "after"),
    [
        ("HEAD", "look for", 0),
        ("PUT", "write", 0),
        ("GET", "read", 0),
        ("GET", "list", 1),
        ("DELETE", "delete", 0),
    ],
)
@pytest.mark.process
def test_a_right_that_is_missing_is_named_by_what_it_is_for(
    s3_endpoint, bucket, method, verb, after
):
    """S3 tells who may not list that a missing object is forbidden: that is found first."""
    with kit.proxy_before(s3_endpoint) as proxy:
        proxy.next(lambda _, pass_on: pass_on(), method, times=after)
        proxy.next(kit.says(403, "AccessDenied"), method, times=9)
        with pytest.raises(PlaceUnreachable, match=f"cannot try to {verb} object probe/.*policy"):
            require_place(storage(f"s3://{bucket}/team", proxy.url))


@pytest.mark.process
@pytest.mark.parametrize("lock", [False, True], ids=["versions", "object lock"])
def test_a_bucket_that_keeps_what_is_deleted_says_so(s3_endpoint, bucket, lock):
    client, name = kit.s3_client(s3_endpoint), f"{bucket}-kept"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=lock)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if lock:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 3}}
        client.put_object_lock_configuration(
            Bucket=name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
    said = require_place(storage(f"s3://{name}/team", s3_endpoint))
    assert said.startswith(f"s3://{name}/team")
    assert ("locked (COMPLIANCE" if lock else "it keeps versions") in said
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    assert lock or require_place(storage(f"s3://{name}/team", s3_endpoint)) == ""


def test_a_retention_policy_of_google_is_told_or_refused(google, google_bucket, monkeypatch):
    until, found = datetime.now(UTC) + timedelta(days=3), GcsRemote._reload

    def kept(self, key):
        blob = found(self, key)
        blob._properties["retentionExpirationTime"] = f"{until:%Y-%m-%dT%H:%M:%SZ}"
        return blob

    monkeypatch.setattr(GcsRemote, "_reload", kept)
    said = require_place(storage(f"gs://{google_bucket}/team", google.url))
    assert f"{until:%Y-%m-%d}" in said
    refusal = {"error": {"message": "Object is subject to bucket's retention policy", "code": 403}}
    answer = kit.Answer(403, [("Content-Type", "application/json")], json.dumps(refusal).encode())
    with kit.proxy_before(google.url) as proxy:
        proxy.next(lambda asked, pass_on: answer, "DELETE", times=9)
        with pytest.raises(PlaceUnreachable, match="without a retention policy"):
            require_place(storage(f"gs://{google_bucket}/team", proxy.url))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    assert require_place(storage((tmp_path / "there").as_uri())) == ""
    assert list((tmp_path / "there").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaceUnreachable, match=r"spec\.storage: cannot make"):
        require_place(storage((tmp_path / "file" / "store").as_uri()))


def test_a_folder_on_a_full_disk_is_refused(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlaceUnreachable, match="no space left"):
        require_place(storage(tmp_path.as_uri()))
    assert list(tmp_path.iterdir()) == []
