"""Refusals are Google's sentences, met through its client at a server of ours; keys and files are real ones."""

from __future__ import annotations

import pytest

from rollout.clouds.contract import BucketPlace, Trouble, read_trouble
from rollout.clouds.diagnosing import Target, diagnose
from rollout.clouds.google import Google
from rollout.objects.retry import Refused, Transient

PLACE = BucketPlace(bucket="runs", prefix="team/research")


def look(cloud, environ=None, role="learner"):
    target = Target(uri="gs://runs/team/research", endpoint=cloud.url)
    return {one.name: one for one in diagnose(target, role, environ or {})}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Refused("no credentials (Your default credentials were not found.)", ""), "iam.gke.io/gcp-service-account"),
        (Refused("no credentials (('invalid_grant: Bad Request', {}))", ""), "sign in again"),
        (Refused("no credentials (invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe)", ""), "clock"),
        (Refused("no credentials (Permission 'iam.serviceAccounts.getAccessToken' denied)", ""), "workloadIdentityUser"),
        (Refused("no credentials (invalid_grant: Invalid grant: account not found)", ""), "sign in again"),
        (Transient("credentials cannot be had now: Failed to retrieve http://metadata.google.internal/..."), "metadata service"),
        (Refused("HTTP 401: Invalid Credentials", ""), "sign in again"),
        (Transient("ConnectTimeout: storage.googleapis.com"), "open egress"),
    ],
)  # fmt: skip
def test_credentials_that_cannot_be_had_say_why(error, words):
    assert words in Google({}).explain(read_trouble(error), "identify", PLACE).fix


@pytest.mark.parametrize(
    ("verb", "permission"),
    [
        ("look for", "storage.objects.get"),
        ("write", "storage.objects.create"),
        ("list", "storage.objects.list"),
        ("delete", "storage.objects.delete"),
    ],
)
def test_a_refusal_without_words_is_named_by_what_was_done(verb, permission):
    said = Trouble(status=403, code="", said="Forbidden")
    assert permission in Google({}).explain(said, verb, PLACE).fix


@pytest.mark.parametrize(
    "data", [None, b"", b"[1]", b'{"type": "key"}', b'{"type": 1}', b"\xff" * 99, b"[" * 99999]
)
def test_a_file_that_holds_no_credentials_is_told_and_not_quoted(tmp_path, data):
    path = tmp_path / "key.json"
    if data is not None:
        path.write_bytes(data)
    (found,) = Google({"GOOGLE_APPLICATION_CREDENTIALS": str(path)}).judge_source(0)
    assert found.state == "broken"
    assert len(found.found) < 200 + len(str(path))


@pytest.mark.parametrize(
    ("key", "state"),
    [
        ("projects/p/locations/eu/keyRings/r/cryptoKeys/k", "ok"),
        ("projects/p/locations/eu/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1", "broken"),
        ("arn:aws:kms:eu-central-1:111122223333:key/one", "broken"),
    ],
)
def test_a_key_that_is_none_of_googles_is_told(key, state):
    place = BucketPlace(bucket="runs", prefix="team", kms_key=key)
    (found,) = Google({}).judge_settings(place)
    assert (found.name, found.state) == ("key", state)


def test_an_emulator_in_the_environment_is_told(cloud):
    environ = {"STORAGE_EMULATOR_HOST": "127.0.0.1:1"}
    (found,) = Google(environ).judge_settings(PLACE)
    assert found.state == "lack"
    assert Google(environ).address(PLACE) == "http://127.0.0.1:1"


def test_closed_egress_is_told(cloud):
    cloud.url = "http://127.0.0.1:1"
    assert "open egress" in look(cloud)["server"].fix
