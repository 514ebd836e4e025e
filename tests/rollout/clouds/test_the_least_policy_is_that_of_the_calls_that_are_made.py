"""A run's objects go through the clouds' clients and a proxy that records; the table of recorded calls is compared."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import gcs_kit
import objects_kit as kit
import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.clouds import policies
from rollout.clouds.contract import BucketPlace
from rollout.errors import SpecError, StoreError
from rollout.objects import s3
from rollout.objects.opening import require_place
from rollout.objects.places import open_bucket, open_named, parse_bucket
from rollout.objects.source import PartsSource
from rollout_api.v1alpha1.storage import Storage

PLACE = BucketPlace(bucket="runs", prefix="team/research")
MANIFEST = Path(__file__).parents[3] / "manifests" / "samples" / "arithmetic.yaml"


def call_at_amazon(method: str, path: str) -> str:
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if "list-type" in query:
        return "ListObjectsV2"
    if "uploads" in query:
        return "CreateMultipartUpload"
    if "uploadId" in query:
        names = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload"}
        return names.get(method, "AbortMultipartUpload")
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}[
        method
    ]


def call_at_google(method: str, path: str) -> str:
    if method == "GET":
        return "objects.get" if re.search(r"/o/.", urlsplit(path).path) else "objects.list"
    return {"POST": "objects.insert", "PUT": "objects.insert", "DELETE": "objects.delete"}[method]


def use_all(uri: str, endpoint: str, tmp_path) -> str:
    """What processes that write do with a run's place: objects, large ones, named ones, probes."""
    require_place(Storage.model_validate({"uri": uri, "endpoint": endpoint}))
    store = kit.bucket_store(uri, endpoint, tmp_path / "one")
    digest = store.put(b"weights")
    other = store.put(b"train state")
    store.names()
    store.delete(other)
    remote = open_bucket(parse_bucket(uri, endpoint=endpoint), kit.QUICK)
    remote.write("large", PartsSource([b"x" * (1 << 20)] * 2))
    named = open_named(uri, endpoint=endpoint, patience=kit.QUICK)
    tag = named.replace("snapshots/one", b"two", named.create("snapshots/one", b"one"))
    named.get("snapshots/one", 64)
    assert [one.name for one in named.entries("snapshots/")] == ["snapshots/one"]
    named.delete("snapshots/one", tag)
    return digest


def recorded(upstream: str, name_call, use) -> tuple[str, ...]:
    with kit.proxy_before(upstream) as proxy:
        use(proxy.url)
        return tuple(sorted({name_call(*one) for one in proxy.seen}))


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", kit.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", kit.SECRET_KEY)


def use_both(uri, upstream, name_call, tmp_path) -> dict[str, tuple[str, ...]]:
    digests = []

    def write(endpoint):
        digests.append(use_all(uri, endpoint, tmp_path))

    def read(endpoint):
        kit.bucket_store(uri, endpoint, tmp_path / "actor").path(digests[0])

    access = {"write": write, "read": read}
    return {kind: recorded(upstream, name_call, use) for kind, use in access.items()}


@pytest.mark.process
def test_calls_at_amazon_are_those_of_the_table(s3_endpoint, keys, monkeypatch, tmp_path):
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 1 << 20)
    client = kit.s3_client(s3_endpoint)
    client.create_bucket(Bucket="recorded")
    found = use_both("s3://recorded/team", s3_endpoint, call_at_amazon, tmp_path)
    with kit.proxy_before(s3_endpoint) as proxy:
        proxy.next(kit.says(403, "AccessDenied"), "PUT")
        remote = open_bucket(parse_bucket("s3://recorded/x", endpoint=proxy.url), kit.QUICK)
        with pytest.raises(StoreError):
            remote.write("large", PartsSource([b"x" * (1 << 20)] * 2))
        aborted = {call_at_amazon(*one) for one in proxy.seen}
    found["write"] = tuple(sorted({*found["write"], *aborted}))
    assert found == dict(policies.RECORDED["s3"])


def test_calls_at_google_are_those_of_the_table(tmp_path):
    with gcs_kit.google_server() as google:
        google.buckets.add("recorded")
        found = use_both("gs://recorded/team", google.url, call_at_google, tmp_path)
    assert found == dict(policies.RECORDED["gs"])


def allows(policy, action, resource) -> bool:
    return any(
        action in one["Action"] and fnmatchcase(resource, one["Resource"])
        for one in policy["Statement"]
    )


def test_a_policy_permits_its_own_prefix_and_nothing_beside_it():
    policy = policies.s3_policy(PLACE, "learner")
    assert allows(policy, "s3:PutObject", "arn:aws:s3:::runs/team/research/one")
    assert not allows(policy, "s3:PutObject", "arn:aws:s3:::runs/team/research2/one")
    assert not allows(policy, "s3:PutObject", "arn:aws:s3:::runs2/team/research/one")
    assert not any("*" in one for statement in policy["Statement"] for one in statement["Action"])
    actor = policies.s3_policy(PLACE, "actor", "arn:aws:kms:eu-central-1:1:key/one")
    actions = {one for statement in actor["Statement"] for one in statement["Action"]}
    assert actions == {"s3:GetObject", "s3:ListBucket", "kms:Decrypt"}
    china = BucketPlace(bucket="runs", prefix="", region="cn-north-1")
    assert (
        policies.s3_policy(china, "actor")["Statement"][0]["Resource"] == "arn:aws-cn:s3:::runs/*"
    )


def test_googles_condition_holds_the_prefix_and_listing_has_none():
    objects, listing = policies.gcs_policy(PLACE, "learner")["bindings"]
    assert "/objects/team/research/'" in objects["condition"]
    assert listing == {"bucket": "runs", "permissions": ["storage.objects.list"]}
    (actor,) = policies.gcs_policy(PLACE, "actor")["bindings"]
    assert actor["permissions"] == ["storage.objects.get"]


def test_a_runs_own_key_is_in_its_policy():
    key = "arn:aws:kms:eu-central-1:111122223333:key/one"
    keyed = BucketPlace(bucket="runs", prefix="team/research", kms_key=key)
    statement = policies.s3_policy(keyed, "learner")["Statement"][-1]
    assert statement["Resource"] == key
    assert statement["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    google = BucketPlace(
        bucket="runs", prefix="team", kms_key="projects/p/locations/eu/keyRings/r/cryptoKeys/k"
    )
    binding = policies.gcs_policy(google, "actor")["bindings"][-1]
    assert binding["kmsKey"] == google.kms_key
    assert "gs-project-accounts" in binding["member"]


def test_the_command_prints_the_policy_of_a_manifests_place(tmp_path):
    manifest = tmp_path / "run.yaml"
    manifest.write_text(
        MANIFEST.read_text().replace("spec:\n", 'spec:\n  storage: {uri: "s3://runs/team"}\n', 1)
    )
    asked = ["cloud", "policy", "--for", str(manifest), "--namespace", "research"]
    said = CliRunner().invoke(app, asked)
    assert json.loads(said.stdout) == policies.s3_policy(PLACE, "learner")


@pytest.mark.parametrize(
    ("uri", "action", "resource"),
    [
        (
            "sqs://cn-north-1/123456789012/q.fifo",
            "sqs:SendMessage",
            "arn:aws-cn:sqs:cn-north-1:123456789012:q.fifo",
        ),
        (
            "sns://eu-central-1/123456789012/t",
            "sns:Publish",
            "arn:aws:sns:eu-central-1:123456789012:t",
        ),
    ],
)
def test_who_sends_events_to_amazon_may_do_that_and_nothing_else(uri, action, resource):
    said = CliRunner().invoke(app, ["cloud", "policy", "--uri", uri])
    [statement] = json.loads(said.stdout)["Statement"]
    assert statement == {"Effect": "Allow", "Action": [action], "Resource": resource}
    keyed = CliRunner().invoke(app, ["cloud", "policy", "--uri", uri, "--kms-key", "arn:key"])
    assert json.loads(keyed.stdout)["Statement"][1]["Resource"] == "arn:key"


def test_who_sends_events_to_google_may_publish_to_the_one_topic():
    said = CliRunner().invoke(app, ["cloud", "policy", "--uri", "pubsub://a-project/runs"])
    binding = {"topic": "projects/a-project/topics/runs", "permissions": ["pubsub.topics.publish"]}
    assert json.loads(said.stdout) == {"bindings": [binding]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no place"),
        (["--uri", "pubsub://a-project/runs", "--kms-key", "arn"], "no place of Amazon's"),
        (["--uri", "sqs://eu-central-1/123456789012/q", "--region", "x"], "leave out"),
        (["--uri", "sqs://q"], "expected s3://"),
        (["--uri", "https://runs"], "expected s3://"),
        (["--uri", "gs://runs/team", "--kms-key", "arn"], "--kms-key"),
        (["--namespace", "research"], "name it with --uri"),
        (["--for", "run.yaml", "--uri", "s3://runs"], "leave out --uri"),
    ],
)
def test_options_that_name_no_place_are_refused(options, words):
    said = CliRunner().invoke(app, ["cloud", "policy", *options])
    assert isinstance(said.exception, SpecError)
    assert words in str(said.exception)


def test_the_doctor_tells_by_its_exit_code(tmp_path):
    there = ["cloud", "doctor", "--uri", (tmp_path / "there").as_uri()]
    assert CliRunner().invoke(app, there).exit_code == 0
    (tmp_path / "file").write_text("")
    said = CliRunner().invoke(app, ["cloud", "doctor", "--uri", (tmp_path / "file" / "x").as_uri()])
    assert said.exit_code == 1
    assert "BROKEN" in said.stdout
