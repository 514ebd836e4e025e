"""Queues and topics that take a run's events: SQS, SNS and Pub/Sub, one message an event. Unproven on a cloud.

Credentials come from the clouds' own chains and are never logged. Nothing is tried again here: whoever sends does.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import quote

from rollout.errors import SpecError
from rollout_api.fields.event_targets import EventTarget

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"
CONTENT_TYPE_NAME = "content-type"
LIBRARIES = {"sqs": ("boto3", "s3"), "sns": ("boto3", "s3"), "pubsub": ("google.auth", "gcs")}
"""What a service needs, and the extra that brings it."""
PUBSUB = "https://pubsub.googleapis.com"


class Send(Protocol):
    """Sends one event and comes back once it was taken."""

    def __call__(self, ident: str, group: str, body: str) -> None:
        """``body`` is the event; those of one ``group`` keep their order where the service can. Raises Refused, Absent, Transient and SpecError."""
        ...


def require_client(target: EventTarget, field: str) -> None:
    """That what speaks to the service is installed. Raises SpecError."""
    library, extra = LIBRARIES[target.service]
    try:
        found = find_spec(library)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise SpecError(
            f"{field}: {target.uri} needs {library}, which is not installed; pip install 'rollout-rl[{extra}]'"
        )


def open_sender(target: EventTarget) -> Send:
    """A client of the target, with the credentials that are there now. Raises SpecError, Refused and Transient."""
    return _OPENERS[target.service](target)


def _open_sqs(target: EventTarget) -> Send:
    from rollout.objects import s3

    client = s3.open_service("sqs", target.uri, region=target.region)
    url = f"{client.meta.endpoint_url}/{target.owner}/{target.name}"

    def send(ident: str, group: str, body: str) -> None:
        options = {"MessageAttributes": _ATTRIBUTES, **_fifo(target, ident, group)}
        s3.call(partial(client.send_message, QueueUrl=url, MessageBody=body, **options))

    return send


def _open_sns(target: EventTarget) -> Send:
    from rollout.objects import s3

    client = s3.open_service("sns", target.uri, region=target.region)

    def send(ident: str, group: str, body: str) -> None:
        options = {"MessageAttributes": _ATTRIBUTES, **_fifo(target, ident, group)}
        s3.call(partial(client.publish, TopicArn=target.resource, Message=body, **options))

    return send


_ATTRIBUTES = {CONTENT_TYPE_NAME: {"DataType": "String", "StringValue": CONTENT_TYPE}}


def _fifo(target: EventTarget, ident: str, group: str) -> Mapping[str, str]:
    """What is sent again within five minutes is kept once, by the hash of its id."""
    if not target.keeps_order:
        return {}
    # The name of a group is bounded in what it may hold, as is that of a message.
    return {"MessageGroupId": _digest(group), "MessageDeduplicationId": _digest(ident)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _open_pubsub(target: EventTarget) -> Send:
    """Pub/Sub's REST API with the credentials of Google's chain; ``PUBSUB_EMULATOR_HOST`` gets none."""
    from rollout.objects import gcs

    post = gcs.open_service("pubsub", is_anonymous=is_emulated())

    def send(ident: str, group: str, body: str) -> None:
        del ident  # it is in the event: Pub/Sub knows no ids of its senders
        message: dict[str, Any] = {
            "data": b64encode(body.encode()).decode(),
            "attributes": {CONTENT_TYPE_NAME: CONTENT_TYPE},
            "orderingKey": group,
        }
        post(f"{topic_url(target)}:publish", {"messages": [message]})

    return send


def is_emulated() -> bool:
    """Whether ``PUBSUB_EMULATOR_HOST`` stands in Pub/Sub's place."""
    return bool(os.environ.get("PUBSUB_EMULATOR_HOST"))


def pubsub_address() -> str:
    """Where Pub/Sub is reached."""
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    return f"http://{emulator}" if emulator else PUBSUB


def topic_url(target: EventTarget) -> str:
    """A topic of Pub/Sub's REST API."""
    topic = f"{quote(target.owner, safe=':')}/topics/{quote(target.name, safe='')}"
    return f"{pubsub_address()}/v1/projects/{topic}"


_OPENERS: Mapping[str, Callable[[EventTarget], Send]] = {
    "sqs": _open_sqs,
    "sns": _open_sns,
    "pubsub": _open_pubsub,
}
