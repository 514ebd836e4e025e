"""A metadata service tells that its machine is taken away: heard once, when it is time, and whatever else it says is not."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from email.utils import format_datetime

import httpx
import pytest
from metadata_service import INSTANCE, QUIET, metadata_service

from rollout.clouds import notices
from rollout.clouds.notices import Ec2Machine, GoogleMachine, Notice, NoticeWatch, find_machine

NOW = 1_790_000_000.0
SPOT = "/latest/meta-data/spot/instance-action"
EVENTS = "/latest/meta-data/events/maintenance/scheduled"


@pytest.fixture
def service():
    with metadata_service() as found:
        yield found


@pytest.fixture
def client():
    with httpx.Client(trust_env=False, timeout=30) as found:
        yield found


def iso(at):
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def spot(at=NOW + 120, action="terminate"):
    return json.dumps({"action": action, "time": iso(at)}).encode()


def event(at=NOW + 60, code="instance-stop", state="active"):
    said = {"Code": code, "State": state, "NotBefore": "", "EventId": "instance-event-0"}
    said["NotBefore"] = format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)
    return said


def read(machine, client, now=NOW):
    return list(machine.read(client, now))


def test_a_spot_machine_is_told_its_end_and_asked_with_a_token_that_is_renewed(service, client):
    machine = Ec2Machine(service.url)
    assert read(machine, client) == []
    service.tokens = {"another"}
    service.answers[SPOT] = spot()
    what = "EC2 will terminate this spot machine"
    assert read(machine, client) == [Notice(what=what, at=NOW + 120)]


@pytest.mark.parametrize(
    ("code", "state", "is_heard"),
    [
        ("instance-stop", "active", True),
        ("instance-retirement", "active", True),
        ("system-reboot", "active", True),
        ("system-maintenance", "active", False),
        ("instance-stop", "completed", False),
        ("instance-stop", "canceled", False),
    ],
)
def test_a_scheduled_event_counts_where_it_ends_what_runs(service, client, code, state, is_heard):
    service.answers[EVENTS] = json.dumps([event(code=code, state=state)]).encode()
    assert [one.at for one in read(Ec2Machine(service.url), client)] == [NOW + 60] * is_heard


def test_a_preempted_machine_of_googles_has_half_a_minute(service, client):
    service.answers |= QUIET
    machine = GoogleMachine(service.url, accelerated=False)
    assert read(machine, client) == []
    service.answers[f"{INSTANCE}/preempted"] = b"TRUE\n"
    assert [one.at for one in read(machine, client)] == [NOW + 30]


@pytest.mark.parametrize(("accelerated", "seconds"), [(True, 3600), (False, 60)])
def test_a_maintenance_is_counted_from_when_it_was_first_seen(
    service, client, accelerated, seconds
):
    service.answers |= QUIET | {f"{INSTANCE}/maintenance-event": b"TERMINATE_ON_HOST_MAINTENANCE"}
    machine = GoogleMachine(service.url, accelerated=accelerated)
    assert [read(machine, client, NOW + age)[0].at for age in (0, 5, 10)] == [NOW + seconds] * 3
    service.answers[f"{INSTANCE}/maintenance-event"] = b"MIGRATE_ON_HOST_MAINTENANCE"
    assert read(machine, client) == []


HOSTILE = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[" * 50_000,
    b'{"action": "terminate"}',
    b'{"action": "terminate", "time": "soon"}',
    b'{"action": "terminate", "time": "2026-09-18T08:22:00"}',
    b'{"action": "\\u001b[2J", "time": "2026-09-18T08:22:00Z"}',
    b'[{"Code": "instance-stop", "State": "active", "NotBefore": "99 Nonember"}]',
    b'[{"Code": "instance-stop", "State": "active", "NotBefore": 7}]',
    b"TERMINATE_ON_HOST_MAINTENANCE" + b" " * (notices.BODY_BYTES_MAX + 1),
    b"<html>a proxy</html>",
)


@pytest.mark.parametrize("body", HOSTILE)
def test_what_is_not_said_as_documented_is_no_notice(service, client, body):
    service.answers = dict.fromkeys((SPOT, EVENTS, *QUIET), body)
    assert read(Ec2Machine(service.url), client) == []
    assert read(GoogleMachine(service.url, accelerated=False), client) == []


class Script:
    """A machine whose looks were written down; the last one stays."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.exhausted = threading.Event()

    def read(self, client, now):
        del client, now
        is_last = len(self.looks) == 1
        look = self.looks[0] if is_last else self.looks.pop(0)
        if is_last:
            self.exhausted.set()
        if isinstance(look, Exception):
            raise look
        return iter(look)


def watch(machine):
    """Heeded, and noted, when the watch has seen everything."""
    heeded, noted, done = [], [], threading.Event()

    def heed(notice):
        heeded.append(notice)
        done.set()

    with NoticeWatch(machine, heed=heed, note=noted.append, poll_seconds=0.001, clock=lambda: NOW):
        assert machine.exhausted.wait(60)
        if any(abs(one.at - NOW) <= notices.HEED_SECONDS for one in machine.looks[0]):
            assert done.wait(60)
    return heeded, noted


def test_a_notice_is_told_when_it_is_seen_and_heeded_once_when_it_is_due():
    far, near = (Notice(what="maintenance", at=NOW + at) for at in (3600, 200))
    heeded, noted = watch(Script([], [far], [far], [near]))
    assert heeded == [near]
    assert noted == [f"maintenance: at {datetime.fromtimestamp(NOW + 3600, UTC).isoformat()}"]


def test_what_did_not_come_true_stops_nobody():
    heeded, noted = watch(Script([], [Notice(what="a reboot", at=NOW - 86_400)]))
    assert (heeded, len(noted)) == ([], 1)


def test_a_service_that_is_silent_is_named_once_and_asked_on():
    silent = httpx.ConnectTimeout("timed out")
    near = Notice(what="spot", at=NOW + 120)
    heeded, noted = watch(Script(silent, silent, [near]))
    assert heeded == [near]
    assert [("does not answer" in one) for one in noted] == [True, False]


@pytest.mark.parametrize(
    ("environ", "firmware", "kind"),
    [
        ({}, {}, None),
        ({}, {"sys_vendor": "Amazon EC2"}, Ec2Machine),
        ({}, {"product_name": "Google Compute Engine"}, GoogleMachine),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, {"sys_vendor": "Amazon EC2"}, None),
        ({"NO_GCE_CHECK": "true"}, {"product_name": "Google Compute Engine"}, None),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}, {}, Ec2Machine),
        ({"GCE_METADATA_HOST": "127.0.0.1:1"}, {}, GoogleMachine),
        ({}, {"sys_vendor": "QEMU", "product_name": "Standard PC"}, None),
    ],
)
def test_whose_machine_it_is_says_the_firmware_or_the_variables_of_the_clouds(
    tmp_path, environ, firmware, kind
):
    for name, said in firmware.items():
        (tmp_path / name).write_text(f"{said}\n")
    found = find_machine(environ, tmp_path, accelerated=False)
    assert type(found) is (kind or type(None))
