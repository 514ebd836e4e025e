"""Notices that a cloud gives its machines: when this one is taken back or stopped, as its metadata service tells it.

- EC2: IMDSv2, ``spot/instance-action`` (two minutes ahead) and ``events/maintenance/scheduled`` (days ahead).
- Compute Engine: ``instance/preempted`` (30 seconds) and ``instance/maintenance-event`` (an hour with accelerators, else a minute).

What a service says beside that, or not as documented, is no notice: nothing ends by mistake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, TypeVar

import httpx
import msgspec

T = TypeVar("T")

POLL_SECONDS = 5.0
"""As EC2 advises for spot machines."""
TIMEOUT_SECONDS = 2.0
BODY_BYTES_MAX = 1 << 16
HEED_SECONDS = 300.0
"""How long before the end of a machine its work is stopped: a step and an anchor have to fit in."""
TOKEN_SECONDS = 21_600
PREEMPTED_SECONDS = 30.0
MAINTAINED_SECONDS = 60.0
MAINTAINED_SECONDS_ACCELERATED = 3_600.0
DMI = Path("/sys/class/dmi/id")
AMAZON_ADDRESS = "http://169.254.169.254"
GOOGLE_ADDRESS = "http://metadata.google.internal"
ENDS = frozenset({"instance-stop", "instance-retirement", "instance-reboot", "system-reboot"})
"""Codes of EC2's scheduled events that end what runs on a machine; ``system-maintenance`` may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """This machine is taken away: ``what`` says why, ``at`` is the earliest moment, in Unix seconds."""

    what: str
    at: float

    def is_due(self, now: float) -> bool:
        """Whether work is to be stopped by now; one that is long past did not come true."""
        return abs(self.at - now) <= HEED_SECONDS


class CloudMachine(Protocol):
    """The cloud's machine that this process runs on."""

    def read(self, client: httpx.Client, now: float) -> Iterator[Notice]:
        """What its metadata service says. Raises httpx.HTTPError where it does not answer."""
        ...


class Ec2Machine:
    """A machine of EC2's; asks with a session's token, as IMDSv2 requires."""

    def __init__(self, address: str = AMAZON_ADDRESS) -> None:
        self._address = address.rstrip("/")
        self._token = ""

    def read(self, client: httpx.Client, now: float) -> Iterator[Notice]:
        """Its end as a spot machine, and what is scheduled for it."""
        del now
        action = _parse(self._get(client, "meta-data/spot/instance-action"), _SpotAction)
        if action is not None:
            yield Notice(
                what=f"EC2 will {action.action} this spot machine", at=action.time.timestamp()
            )
        events = self._get(client, "meta-data/events/maintenance/scheduled")
        for event in _parse(events, list[_Event]) or ():
            at = _read_date(event.NotBefore)
            if event.Code in ENDS and event.State == "active" and at is not None:
                yield Notice(what=f"EC2 has scheduled {event.Code} for this machine", at=at)

    def _get(self, client: httpx.Client, path: str) -> bytes:
        status, body = self._ask(client, path)
        if status == httpx.codes.UNAUTHORIZED:  # a token ends
            self._token = ""
            status, body = self._ask(client, path)
        return body if status == httpx.codes.OK else b""

    def _ask(self, client: httpx.Client, path: str) -> tuple[int, bytes]:
        if not self._token:
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            status, body = _fetch(client, "PUT", f"{self._address}/latest/api/token", lasts)
            token = body.decode(errors="replace")
            if status != httpx.codes.OK or not (token.isascii() and token.isprintable()):
                return status, b""
            self._token = token
        return _fetch(
            client,
            "GET",
            f"{self._address}/latest/{path}",
            {"X-aws-ec2-metadata-token": self._token},
        )


class GoogleMachine:
    """A machine of Compute Engine's. How long before a maintenance it is told depends on its accelerators."""

    def __init__(self, address: str = GOOGLE_ADDRESS, *, accelerated: bool) -> None:
        self._address = address.rstrip("/")
        self._seconds = MAINTAINED_SECONDS_ACCELERATED if accelerated else MAINTAINED_SECONDS
        self._seen_at: float | None = None

    def read(self, client: httpx.Client, now: float) -> Iterator[Notice]:
        """Its preemption, and a maintenance for which it is stopped; neither has a date of its own."""
        if self._get(client, "preempted") == b"TRUE":
            what = "Compute Engine preempts this machine"
            yield Notice(what=what, at=now + PREEMPTED_SECONDS)
        if self._get(client, "maintenance-event") == b"TERMINATE_ON_HOST_MAINTENANCE":
            self._seen_at = self._seen_at or now
            what = "Compute Engine stops this machine for a maintenance of its host"
            yield Notice(what=what, at=self._seen_at + self._seconds)
        else:
            self._seen_at = None

    def _get(self, client: httpx.Client, name: str) -> bytes:
        flavor = {"Metadata-Flavor": "Google"}
        url = f"{self._address}/computeMetadata/v1/instance/{name}"
        status, body = _fetch(client, "GET", url, flavor)
        return body.strip() if status == httpx.codes.OK else b""


class _SpotAction(msgspec.Struct):
    action: Literal["terminate", "stop", "hibernate"]
    time: Annotated[datetime, msgspec.Meta(tz=True)]


class _Event(msgspec.Struct):
    NotBefore: str
    Code: str
    State: str = "active"


def find_machine(
    environ: Mapping[str, str], dmi: Path = DMI, *, accelerated: bool
) -> CloudMachine | None:
    """The machine that this is, by what its firmware says, or by the variables of the clouds' own libraries; None: no cloud's.

    ``AWS_EC2_METADATA_DISABLED`` and ``NO_GCE_CHECK`` keep off the metadata services.
    """
    amazon, google = (
        environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        environ.get("GCE_METADATA_HOST"),
    )
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        amazon = None
    elif amazon or _firmware(dmi, "sys_vendor") == "Amazon EC2":
        return Ec2Machine(amazon or AMAZON_ADDRESS)
    if environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    if google or _firmware(dmi, "product_name") == "Google Compute Engine":
        return GoogleMachine(
            f"http://{google}" if google else GOOGLE_ADDRESS, accelerated=accelerated
        )
    return None


class NoticeWatch:
    """Asks ``machine`` every few seconds in a thread, and calls ``heed`` once, when a notice is due.

    ``note`` is told of a notice when it is first seen, and of a service that does not answer.
    """

    def __init__(
        self,
        machine: CloudMachine,
        *,
        heed: Callable[[Notice], None],
        note: Callable[[str], None],
        poll_seconds: float = POLL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._machine = machine
        self._heed = heed
        self._note = note
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._told: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="cloud-notices")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * TIMEOUT_SECONDS)

    def _watch(self) -> None:
        with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            while not self._ended.is_set():
                if self._look(client):
                    return
                self._ended.wait(self._poll_seconds)

    def _look(self, client: httpx.Client) -> bool:
        """Whether a notice was due, and heeded."""
        now = self._clock()
        try:
            notices = sorted(self._machine.read(client, now), key=lambda one: one.at)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._tell(
                f"the metadata service of this machine does not answer ({error}): no notice of its end is heard"
            )
            return False
        for notice in notices:
            self._tell(f"{notice.what}: at {_say_time(notice.at)}", key=notice.what)
            if notice.is_due(now):
                self._heed(notice)
                return True
        return False

    def _tell(self, text: str, *, key: str = "silent") -> None:
        if key not in self._told:
            self._told.add(key)
            self._note(text)


def _fetch(
    client: httpx.Client, method: str, url: str, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """Status and body; one that is too long is none."""
    with client.stream(method, url, headers=headers) as response:
        body = b""
        for piece in response.iter_bytes():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                return response.status_code, b""
        return response.status_code, body


def _parse(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _read_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _firmware(dmi: Path, name: str) -> str:
    try:
        return (dmi / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def _say_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
