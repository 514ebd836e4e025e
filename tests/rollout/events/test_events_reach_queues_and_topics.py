"""Through the clouds' own clients: each event arrives at least once, in order, as a CloudEvent, whatever the network does."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import events_kit as kit
import objects_kit
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from rollout.clouds import policies
from rollout.events import asking, senders
from rollout_api.fields.event_targets import parse_event_target

pytestmark = pytest.mark.process


def lost(asked, pass_on):
    """It was taken, and the answer does not come back."""
    pass_on()


FAULTS = [
    *[objects_kit.says(500, "InternalError")] * 2,
    *[objects_kit.says(429, "Throttling")] * 2,
    objects_kit.cut,
    objects_kit.says(403, "ExpiredToken"),
]
LOST = 2


@pytest.fixture(params=kit.SERVICES)
def service(request, amazon, monkeypatch):
    kit.hurry(monkeypatch)
    with kit.service(request.param, amazon, monkeypatch) as found:
        yield found


def test_each_event_arrives_once_as_a_cloud_event(service, tmp_path):
    tracker = kit.open_tracker(tmp_path, service.uri)
    tracker.announce(kit.events(3))
    tracker.announce(kit.events(3))
    tracker.close()

    found = [json.loads(body) for body in service.read()]
    assert [one["id"] for one in found] == [f"uid-1/snapshot/0/{step}" for step in range(3)]
    for one in found:
        # What the specification asks of attributes: their names, those that must be there, their forms.
        assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in one)
        assert all(one[name] for name in ("id", "source", "type"))
        assert one["specversion"] == "1.0"
        assert urlsplit(one["source"]).path == "/runs/uid-1"
        assert one["subject"] == "research/sums"
        assert one["type"] == "dev.rollout.run.snapshot"
        assert datetime.fromisoformat(one["time"]).utcoffset() is not None
        assert one["datacontenttype"] == "application/json"
        assert one["data"]["run"] == "sums"


def call_of(asked) -> str:
    """The call as the cloud names it: in a header, a form or a path."""
    headers = {name.lower(): value for name, value in asked.headers.items()}
    if "x-amz-target" in headers:
        return headers["x-amz-target"].rpartition(".")[2]
    action = parse_qs(asked.body.decode()).get("Action")
    return action[0] if action else f"topics.{asked.path.rpartition(':')[2]}"


def test_the_calls_that_send_are_those_that_the_policy_permits(service, tmp_path):
    tracker = kit.open_tracker(tmp_path, service.uri)
    tracker.announce(kit.events(2))
    tracker.close()
    found = {call_of(one) for one in service.proxy.asked}
    assert found == set(policies.RECORDED[tracker.target.service]["write"])


def test_asking_sends_nothing_and_sending_sends_one(service):
    target = parse_event_target(service.uri)
    asked = asking.ask(target)
    assert asked.state in ({"may", "unsaid"} if ".fifo" in service.uri else {"may"})
    assert list(service.read()) == []
    assert asking.send(target).state == "sent"
    [body] = service.read()
    assert json.loads(body)["type"] == asking.EVENT_TYPE


def test_storms_and_lost_answers_lose_nothing_and_turn_nothing_round(service, tmp_path, caplog):
    for one in (*FAULTS, *[lost] * LOST):
        service.proxy.next(one, "POST")
    with caplog.at_level(logging.DEBUG, logger="rollout"):
        tracker = kit.open_tracker(tmp_path, service.uri)
        tracker.announce(kit.events(3))
        tracker.close()

    bodies = list(service.read())
    assert len(set(bodies)) == 3  # what came twice is the same line
    assert len(bodies) == (3 if ".fifo" in service.uri else 3 + LOST)
    ids = list(dict.fromkeys(json.loads(body)["id"] for body in bodies))
    assert ids == [f"uid-1/snapshot/0/{step}" for step in range(3)]
    assert not service.proxy.faults
    assert kit.SECRET not in caplog.text
    assert not tracker.trouble


def test_a_target_that_refuses_is_told_with_where_its_events_wait(amazon, tmp_path, monkeypatch):
    kit.hurry(monkeypatch)
    monkeypatch.setattr(kit.telling, "CLOSE_FAILURES_MAX", 4)
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon)
    tracker = kit.open_tracker(tmp_path, f"sqs://{kit.REGION}/{kit.ACCOUNT}/nowhere")
    tracker.announce(kit.events(1))
    tracker.close()

    assert tracker.target.uri in tracker.trouble
    assert "NonExistentQueue" in tracker.trouble
    assert str(tmp_path) in tracker.trouble


def test_a_service_account_s_token_is_had_anew_when_it_has_ended(tmp_path, monkeypatch):
    kit.hurry(monkeypatch)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    with kit.google_topics() as google:
        account = {"type": "service_account", "client_email": "runs@a-project", "private_key": text}
        (tmp_path / "key.json").write_text(
            json.dumps({**account, "token_uri": google.url + "/token"})
        )
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setattr(senders, "PUBSUB", google.url)
        google.takes = "t-2"  # the first one has ended
        tracker = kit.open_tracker(tmp_path, "pubsub://a-project/runs")
        tracker.announce(kit.events(2))
        tracker.close()

    assert google.refused == ["Bearer t-1"]
    assert [json.loads(body)["data"]["step"] for body in google.bodies] == [0, 1]
