"""Where a run's events go: a queue or a topic of a cloud, in one line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

AMAZON = re.compile(
    r"(?P<service>sqs|sns)://(?P<region>[a-z]{2}(-[a-z]+)+-\d)/(?P<owner>\d{12})/(?P<name>[A-Za-z0-9_-]{1,251}(\.fifo)?)"
)
GOOGLE = re.compile(
    r"pubsub://(?P<owner>([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,61}[a-z0-9])/(?P<name>[A-Za-z][A-Za-z0-9._~+%-]{2,254})"
)
FORMS = "sqs://REGION/ACCOUNT/QUEUE, sns://REGION/ACCOUNT/TOPIC or pubsub://PROJECT/TOPIC"
QUEUE_CHARACTERS_MAX = 80
PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTarget:
    """A queue or a topic. ``owner`` is an account of Amazon's or a project of Google's; ``region`` is empty at Google."""

    uri: str
    service: Literal["sqs", "sns", "pubsub"]
    owner: str
    name: str
    region: str = ""

    @property
    def keeps_order(self) -> bool:
        """Whether whoever reads gets one run's events in their order."""
        return self.service == "pubsub" or self.name.endswith(".fifo")

    @property
    def resource(self) -> str:
        """Its name in policies."""
        if self.service == "pubsub":
            return f"projects/{self.owner}/topics/{self.name}"
        partition = partition_of(self.region)
        return f"arn:{partition}:{self.service}:{self.region}:{self.owner}:{self.name}"


def partition_of(region: str | None) -> str:
    """The first part of ARNs of Amazon's there."""
    return next((p for start, p in PARTITIONS.items() if (region or "").startswith(start)), "aws")


def parse_event_target(uri: str) -> EventTarget | None:
    """The target that a URI names; None: it names none."""
    found = AMAZON.fullmatch(uri)
    if found is not None:
        service: Literal["sqs", "sns"] = "sqs" if found["service"] == "sqs" else "sns"
        if service == "sqs" and len(found["name"]) > QUEUE_CHARACTERS_MAX:
            return None
        return EventTarget(
            uri=uri,
            service=service,
            region=found["region"],
            owner=found["owner"],
            name=found["name"],
        )
    found = GOOGLE.fullmatch(uri)
    if found is None or found["name"].lower().startswith("goog"):
        return None
    return EventTarget(uri=uri, service="pubsub", owner=found["owner"], name=found["name"])
