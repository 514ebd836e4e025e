"""Each is met through boto3 at a server of ours that answers as Amazon's does, or in the pod's own environment."""

from __future__ import annotations

import os
from time import time

import pytest
from clouds_kit import ROLE_ARN, Refusal, write_token

from rollout.clouds.amazon import Amazon
from rollout.clouds.contract import BucketPlace
from rollout.clouds.diagnosing import Target, diagnose

KEY = "arn:aws:kms:eu-central-1:111122223333:key/one"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture
def look(cloud, monkeypatch):
    """Diagnoses of a run's place at the server, by name, with these variables set and these refused."""

    def look(
        env=KEYS,
        role="learner",
        sts=True,
        endpoint=None,
        region="eu-central-1",
        key=None,
        **refusals,
    ):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        if sts:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.url)
        monkeypatch.setenv("AWS_REGION", region)
        cloud.refusals.update(refusals)
        target = Target(
            uri="s3://runs/team/research",
            endpoint=endpoint or cloud.url,
            region=region,
            kms_key=key,
        )
        found = diagnose(target, role, os.environ)
        return {one.name: one for one in found}

    return look


def broken(found):
    return {name: one for name, one in found.items() if one.state == "broken"}


def test_a_set_up_that_works_is_well_and_nothing_stays_of_the_look(look, cloud):
    found = look()
    assert broken(found) == {}
    assert "assumed-role/research-learner" in found["identity"].found
    assert {"look for", "write", "read", "list", "delete"} <= set(found)
    assert cloud.objects == {}


def test_a_role_of_a_service_account_is_taken_by_its_token(look, cloud, tmp_path):
    token = write_token(tmp_path / "token")
    found = look({"AWS_ROLE_ARN": ROLE_ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": token})
    assert broken(found) == {}
    assert "IRSA" in found["credentials"].found
    assert "assume-role-with-web-identity" in found["identity"].found
    assert "AssumeRoleWithWebIdentity /" in cloud.seen


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_address_is_that_of_the_region_that_the_environment_names(variable):
    assert (
        Amazon({variable: "cn-north-1"}).address(None) == "https://s3.cn-north-1.amazonaws.com.cn"
    )
    assert Amazon({}).address(None) == "https://s3.amazonaws.com"


def test_an_actor_is_tried_at_reading_only(look, cloud):
    found = look(role="actor", PUT=Refusal(403, "AccessDenied"))
    assert broken(found) == {}
    assert "write" not in found


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, "eks.amazonaws.com/audience"),
        ({"exp": time() - 60}, "the kubelet no longer renews"),
        ({"exp": "soon"}, "annotate the pod's service account"),
        (None, "annotate the pod's service account"),
    ],
)
def test_a_token_that_nobody_takes_is_seen_before_anybody_is_asked(
    look, cloud, tmp_path, claims, words
):
    path = tmp_path / "token"
    if claims is not None:
        write_token(path, **claims)
    env = {"AWS_ROLE_ARN": ROLE_ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": str(path)}
    found = look(env)
    assert words in broken(found)["credentials"].fix
    assert [one for one in cloud.seen if not one.startswith("HEAD /")] == []


OF_ANOTHER = "arn:aws:kms:us-east-1:111122223333:key/one"


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("alias/runs", "key", "whole ARN"),
        (OF_ANOTHER, "key", "name a key of eu-central-1"),
        (KEY, "write", "does not encrypt"),
    ],
)
def test_a_key_that_the_bucket_cannot_use_is_named(look, key, name, words):
    """The server of this test keeps no keys."""
    found = broken(look(key=key))[name]
    assert words in f"{found.found} {found.fix}"


def test_no_credentials_say_where_some_come_from(look):
    found = look({})
    assert "IRSA" in broken(found)["identity"].fix
    assert "AWS_EC2_METADATA_DISABLED" in found["credentials"].found


def test_keys_that_hide_a_role_are_told(look, tmp_path):
    token = write_token(tmp_path / "token")
    found = look({**KEYS, "AWS_ROLE_ARN": ROLE_ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": token})
    assert found["credentials"].state == "lack"
    assert "hide" in found["credentials"].found


def test_closed_egress_is_told_from_a_refusal(look):
    found = look(endpoint="http://127.0.0.1:1", sts=False)
    assert "open egress" in broken(found)["server"].fix
    assert "open egress" in broken(found)["look for"].fix


def test_a_clock_that_is_wrong_is_told_before_a_refusal(look, cloud):
    cloud.skew = -1200
    assert "clock" in broken(look())["clock"].fix
    cloud.skew = 60
    assert look()["clock"].state == "lack"
    cloud.date = False
    assert look()["clock"].found == "not compared"


@pytest.mark.parametrize(
    ("region", "state"), [("frankfurt", "broken"), ("eu-central-1a", "broken"), (None, "lack")]
)
def test_a_region_that_is_none_is_told(region, state):
    (found,) = Amazon({}).judge_settings(BucketPlace(bucket="runs", prefix="team", region=region))
    assert found.state == state
    assert "eu-central-1" in found.fix
