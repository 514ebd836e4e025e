"""``rollout cloud doctor`` is called in each set-up that does not work: it names what is wrong and the change that ends it, and changes nothing."""

from __future__ import annotations

import json

import pytest
from broken_set_ups import CREDENTIALS, EVENTS, GONE, HIDDEN, PLACES, SET_UPS, TOKEN, SetUp
from clouds_kit import write_token
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.events import senders

NOBODY = "http://127.0.0.1:1"
MAY = {
    "testIamPermissions": b'{"permissions": ["pubsub.topics.publish"]}',
    "POST": b'{"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}',
}
RUN = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: broken}}
spec:
  model: {{uri: "rollout://tiny-adder"}}
  storage: {{uri: "{uri}", endpoint: "{endpoint}", region: {region}{more}}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 16, groupSize: 8}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    maxSteps: 20
"""


@pytest.fixture(scope="module")
def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


@pytest.fixture
def told(cloud, monkeypatch, tmp_path, private_key):
    """What the doctor says in a set-up, with its exit code."""

    def told(one: SetUp):
        url = NOBODY if one.closed else cloud.url
        cloud.refusals.update(one.refusals)
        cloud.answers.update({**MAY, **one.answers})
        cloud.skew = one.skew
        fixed = {"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT_URL_STS": cloud.url}
        files = {
            TOKEN: write_claims(tmp_path / "token", one),
            "FILE": write_key(tmp_path / "key.json", one, private_key, cloud.url),
        }
        for name, value in {**one.env, **fixed, "AWS_REGION": one.region}.items():
            monkeypatch.setenv(name, files.get(value, value))
        monkeypatch.setattr(senders, "PUBSUB", url)
        place = place_of(one, url, tmp_path / "run.yaml")
        said = CliRunner().invoke(app, ["cloud", "doctor", *place, "--output", "json"])
        assert said.stdout, said.exception
        return said.exit_code, {one["name"]: one for one in json.loads(said.stdout)[one.uri]}

    return told


def place_of(one: SetUp, url: str, path) -> list[str]:
    """Options that name it; a manifest where it has more of storage than a place."""
    if one.storage:
        more = {"endpoint": url, "region": one.region, "more": one.storage}
        path.write_text(RUN.format(uri=one.uri, **more))
        return ["--for", str(path)]
    google = ["--endpoint", url] if one.uri.startswith("gs://") else []
    return ["--uri", one.uri, *google]


def write_claims(path, one: SetUp) -> str:
    if one.claims is not None:
        return write_token(path, **one.claims)
    path.write_text("")
    return str(path)


def write_key(path, one: SetUp, private_key: str, url: str) -> str:
    if one.file is None:
        return GONE
    account = {"type": "service_account", "client_email": "a@p", "private_key": private_key}
    service = json.dumps({**account, "token_uri": f"{url}/token"})
    path.write_text(service if one.file == "SERVICE" else one.file)
    return str(path)


@pytest.mark.parametrize("name", SET_UPS)
def test_it_is_named_with_its_fix_and_nothing_is_changed(name, told, cloud):
    one = SET_UPS[name]
    exit_code, found = told(one)
    assert exit_code == 1
    finding = found[one.finding]
    assert (finding["state"], bool(finding["costs"])) == ("broken", True)
    for words in one.words:
        assert words in f"{finding['found']} {finding['fix']}"
    left = {"delete"} & {other for other, said in found.items() if said["state"] == "broken"}
    assert bool(cloud.objects) == bool(left), "a probe stays only where it may not be deleted"
    assert HIDDEN not in json.dumps(found)


def test_there_are_forty_of_them_and_more():
    assert len(SET_UPS) == len(CREDENTIALS) + len(PLACES) + len(EVENTS)
    assert len(SET_UPS) >= 40
    assert len({(one.finding, one.words) for one in SET_UPS.values()}) >= 40
