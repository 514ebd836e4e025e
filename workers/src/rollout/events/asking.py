"""Whether a queue or a topic would take events from here: asked so that nobody is sent anything.

Pub/Sub says what one may do to a topic. Amazon's services do not: they are given a batch of one message that no queue
may take (a delay, or a structure, that does not exist). They answer for each message of a batch by itself, and for a batch
that one may not send as a whole: where the message alone was refused, the right to send is there. Unproven on a cloud.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import msgspec

from rollout.events.senders import is_emulated, open_sender, pubsub_address, topic_url
from rollout.objects.retry import Refused
from rollout_api.fields.event_targets import EventTarget

NO_SUCH_DELAY = 901
"""SQS delays a message by 900 seconds at most."""
NO_SUCH_STRUCTURE = "none"
PUBLISH = "pubsub.topics.publish"
EVENT_TYPE = "dev.rollout.doctor.asked"
INVALID = ("InvalidParameter", "InvalidParameterValue", "MissingParameter", "ValidationError")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnswer:
    """``may``: it can be sent to; ``may_not``: it cannot; ``unsaid``: it does not say; ``sent``: it has taken a message."""

    state: Literal["may", "may_not", "unsaid", "sent"]
    said: str = ""


def ask(target: EventTarget) -> SendAnswer:
    """Ask without sending. Raises SpecError, Refused, Absent and Transient."""
    if target.service == "pubsub":
        return _ask_pubsub(target)
    try:
        answer = _send_none(target)
    except Refused as error:
        if any(f" {code}:" in str(error) for code in INVALID):
            return SendAnswer(state="unsaid", said=str(error))
        raise
    return read_batch(answer)


def read_batch(answer: Mapping[str, Any]) -> SendAnswer:
    """What the answer to a batch of one message that cannot be taken means."""
    failed: Sequence[Mapping[str, Any]] = answer.get("Failed") or ()
    if answer.get("Successful"):
        return SendAnswer(state="sent", said=f"a message of type {EVENT_TYPE} was taken")
    if failed and failed[0].get("SenderFault"):
        return SendAnswer(state="may")
    said = f"{failed[0].get('Code')}: {failed[0].get('Message')}" if failed else "an empty answer"
    return SendAnswer(state="unsaid", said=said)


def send(target: EventTarget) -> SendAnswer:
    """Send one event of a type of its own. Raises SpecError, Refused, Absent and Transient."""
    ident = f"doctor/{datetime.now(UTC).isoformat()}"
    open_sender(target)(ident, "doctor", write_asking(ident))
    return SendAnswer(state="sent", said=f"an event of type {EVENT_TYPE} was taken")


def write_asking(ident: str) -> str:
    """A CloudEvent that tells whoever reads it that it means nothing."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": ident,
            "source": "//rollout.dev/doctor",
            "type": EVENT_TYPE,
            "data": {"message": "rollout cloud doctor asked whether this is taken; do nothing"},
        }
    )


def service_address(target: EventTarget) -> str:
    """Where the service is reached. Raises SpecError."""
    if target.service == "pubsub":
        return pubsub_address()
    from rollout.objects import s3

    return str(s3.open_service(target.service, target.uri, region=target.region).meta.endpoint_url)


def _send_none(target: EventTarget) -> Mapping[str, Any]:
    from rollout.objects import s3

    client = s3.open_service(target.service, target.uri, region=target.region)
    entry: dict[str, Any] = {"Id": "doctor"}
    if target.keeps_order:
        entry |= {"MessageGroupId": "doctor", "MessageDeduplicationId": "doctor"}
    body = write_asking("doctor")
    if target.service == "sqs":
        url = f"{client.meta.endpoint_url}/{target.owner}/{target.name}"
        entry |= {"MessageBody": body, "DelaySeconds": NO_SUCH_DELAY}
        return s3.call(partial(client.send_message_batch, QueueUrl=url, Entries=[entry]))
    entry |= {"Message": body, "MessageStructure": NO_SUCH_STRUCTURE}
    topic = target.resource
    return s3.call(
        partial(client.publish_batch, TopicArn=topic, PublishBatchRequestEntries=[entry])
    )


class _Permitted(msgspec.Struct):
    permissions: list[str] = []


def _ask_pubsub(target: EventTarget) -> SendAnswer:
    """``testIamPermissions`` needs no right; of a topic that does not exist it says that one may do nothing."""
    from rollout.objects import gcs

    ask = gcs.open_service("pubsub", is_anonymous=is_emulated())
    try:
        said = ask(f"{topic_url(target)}:testIamPermissions", {"permissions": [PUBLISH]})
        granted = msgspec.json.decode(said, type=_Permitted).permissions
    except (msgspec.MsgspecError, RecursionError) as error:
        return SendAnswer(state="unsaid", said=f"no answer of Pub/Sub's: {error}"[:200])
    return SendAnswer(state="may" if PUBLISH in granted else "may_not")
