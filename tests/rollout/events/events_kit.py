"""Queues and topics that remember: moto's through boto3, and a server of ours that takes what Pub/Sub's reference describes."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import objects_kit
from loopback import serving

from rollout.events.cloud_events import EventSource
from rollout.events.tracker import EventTracker
from rollout.run_events import RunEvent
from rollout.tracking import telling
from rollout_api.fields.event_targets import parse_event_target

REGION, ACCOUNT = "eu-central-1", "123456789012"
SOURCE = EventSource(uid="uid-1", name="sums", namespace="research")
SECRET = "a-secret-nobody-may-read"
SERVICES = ["sqs", "sqs-fifo", "sns", "pubsub"]


def events(count: int) -> list[RunEvent]:
    return [
        RunEvent(ident=f"snapshot/0/{step}", kind="snapshot", data={"step": step})
        for step in range(count)
    ]


def hurry(monkeypatch) -> None:
    """The end waits for as long as sending takes, and tries come at once, however many fail."""
    monkeypatch.setattr(telling, "CLOSE_SECONDS", 120.0)
    monkeypatch.setattr(telling, "PAUSE_SECONDS_MAX", 0.001)
    monkeypatch.setattr(telling, "CLOSE_FAILURES_MAX", 1000)


def open_tracker(folder: Path, uri: str, **options) -> EventTracker:
    target = parse_event_target(uri)
    assert target is not None, uri
    return EventTracker(folder, target, SOURCE, **options)


@dataclass
class Service:
    """``uri`` as a run has it; ``read`` gives the bodies that came, in their order; ``proxy`` stands before it."""

    uri: str
    read: object
    proxy: objects_kit.Proxy


@contextmanager
def service(name: str, amazon: str, monkeypatch):
    if name == "pubsub":
        with google_topics() as google, objects_kit.proxy_before(google.url) as proxy:
            google.permits = ["pubsub.topics.publish"]
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", proxy.url.removeprefix("http://"))
            yield Service("pubsub://a-project/runs", lambda: google.bodies, proxy)
        return
    with objects_kit.proxy_before(amazon) as proxy:
        uri, read = amazon_target(name, amazon)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield Service(uri, read, proxy)


def amazon_target(kind: str, endpoint: str):
    """A queue, or a topic that a queue listens to; and what reads the queue."""
    name = f"q-{uuid.uuid4().hex[:12]}" + (".fifo" if kind == "sqs-fifo" else "")
    sqs = boto3.client("sqs", endpoint_url=endpoint, region_name=REGION)
    options = {"Attributes": {"FifoQueue": "true"}} if kind == "sqs-fifo" else {}
    url = sqs.create_queue(QueueName=name, **options)["QueueUrl"]
    uri = f"sqs://{REGION}/{ACCOUNT}/{name}"
    if kind == "sns":
        sns = boto3.client("sns", endpoint_url=endpoint, region_name=REGION)
        arn = sns.create_topic(Name=name)["TopicArn"]
        queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes=raw)
        uri = f"sns://{REGION}/{ACCOUNT}/{name}"

    def read():
        bodies = []
        while got := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            bodies += [one["Body"] for one in got]
            for one in got:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return bodies

    return uri, read


@dataclass
class GoogleTopics:
    """``takes``: the only token it takes; empty: it asks for none. Tokens are t-1, t-2 and so on. ``permits``: of who asks what it may."""

    url: str = ""
    takes: str = ""
    bodies: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    tokens_given: int = 0
    permits: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    google: GoogleTopics

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/token":
            self.google.tokens_given += 1
            given = f"t-{self.google.tokens_given}"
            self._say(200, {"access_token": given, "expires_in": 3600, "token_type": "Bearer"})
            return
        wanted = f"Bearer {self.google.takes}"
        if self.google.takes and self.headers.get("Authorization") != wanted:
            self.google.refused.append(self.headers.get("Authorization", ""))
            self._say(401, {"error": {"code": 401, "message": "invalid authentication"}})
            return
        if self.path.endswith("/topics/runs:testIamPermissions"):
            asked = json.loads(body)["permissions"]
            self._say(200, {"permissions": [one for one in asked if one in self.google.permits]})
            return
        project, _, topic = self.path.removeprefix("/v1/projects/").partition("/topics/")
        messages = json.loads(body)["messages"]
        keys = {one.get("orderingKey") for one in messages}
        assert (project, topic) == ("a-project", "runs:publish")
        assert len(keys) == 1, "all of a request have one ordering key"
        for one in messages:
            assert not {"messageId", "publishTime"} & one.keys(), "they are the server's"
            assert set(one["attributes"]) == {"content-type"}
            self.google.bodies.append(b64decode(one["data"], validate=True).decode())
        self._say(200, {"messageIds": [str(index) for index in range(len(messages))]})

    def _say(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def google_topics():
    google = GoogleTopics()
    handler = type("Handler", (_Handler,), {"google": google})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    google.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield google
