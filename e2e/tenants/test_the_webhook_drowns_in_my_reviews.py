"""The attacker is a pod that reaches the webhook's port: large, many and slow bodies, while others apply their runs."""

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from chart_installation import WEBHOOK, memory_bytes

from cluster.control.ports import LOOPBACK
from rollout_operator.webhook.crowd import BYTES_MAX, REVIEW_BYTES_MAX
from runs import build_run

pytestmark = pytest.mark.control_plane
ATTACKER = "127.0.0.2"
"""Another address of loopback than the API server's calls come from."""
ANSWER_SECONDS_MAX = 30.0
LARGE = 8 << 20
FILLS_ITS_SHARE = BYTES_MAX // 2 // REVIEW_BYTES_MAX
"""So many of the largest reviews one address may have under way."""


class Review:
    """One request of the attacker's: its head is sent, its body when they like."""

    def __init__(self, port, size_bytes):
        near = socket.create_connection(
            (LOOPBACK, port), timeout=ANSWER_SECONDS_MAX, source_address=(ATTACKER, 0)
        )
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(near, server_hostname="localhost")
        head = f"POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size_bytes}\r\n\r\n"
        self._socket.sendall(head.encode())

    def send(self, body):
        """The server may have hung up before it was all sent."""
        try:
            self._socket.sendall(body)
        except OSError:
            return

    def status(self):
        """Of the answer, when it comes."""
        line = self._socket.makefile("rb").readline()
        return int(line.split()[1]) if line else 0

    def close(self):
        self._socket.close()


@pytest.fixture
def ask(installation):
    """Opens reviews; each is closed at the end."""
    with ExitStack() as stack:

        def open_one(size_bytes):
            review = Review(installation.review, size_bytes)
            stack.callback(review.close)
            return review

        yield open_one


def is_served(tenant):
    """An honest run is judged, as it would be on any day."""
    quiet = {"limits": {"activeSeconds": 3600}}
    return tenant.me.create(build_run("honest", quiet), dryRun="All")


def most_memory_bytes(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def limit_bytes(installation):
    """What the chart gives the webhook's container."""
    (found,) = [
        one
        for one in installation.chart
        if one["kind"] == "Deployment" and one["metadata"]["name"] == WEBHOOK
    ]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return memory_bytes(container["resources"]["limits"]["memory"])


def test_a_body_without_measure_is_read(mallory, alice, ask):
    assert ask(LARGE).status() == 413
    assert is_served(alice).done


def test_bodies_that_never_come_keep_others_out(mallory, alice, ask):
    held = [ask(REVIEW_BYTES_MAX) for _ in range(FILLS_ITS_SHARE)]
    assert ask(REVIEW_BYTES_MAX).status() == 429
    assert is_served(alice).done, "while they are held"
    assert {one.status() for one in held} == {503}, "nobody waits for them for ever"
    after = ask(2)
    after.send(b"{}")
    assert after.status() == 400, "the attacker's next call is judged"


def test_many_large_bodies_fill_its_memory(mallory, alice, ask, installation):
    body = b'{"request":{"a":[' + b"1," * ((REVIEW_BYTES_MAX - 64) // 2) + b"1]}}"
    reviews = [ask(len(body)) for _ in range(4 * FILLS_ITS_SHARE)]
    for one in reviews[:FILLS_ITS_SHARE]:
        one.send(body)
    assert is_served(alice).done
    assert {one.status() for one in reviews} <= {400, 429, 503}
    assert is_served(alice).done
    assert most_memory_bytes(installation.webhook) < limit_bytes(installation)
