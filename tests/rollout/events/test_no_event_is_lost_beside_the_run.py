"""The file beside the run is the queue: kills, full disks and services that fail, in any order, lose no event and turn none round."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import events_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.errors import SpecError, StoreError
from rollout.events import tracker as module
from rollout.events.build import open_event_trackers
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.fields.event_targets import parse_event_target
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.run import RolloutRunSpec

URI = "sqs://eu-central-1/123456789012/runs.fifo"


class Still:
    """In the teller's place: nothing is sent but by the test's word."""

    def __init__(self, title, tell_next, waiting, leave):
        self.trouble = ""

    def start(self):
        pass

    wake = start


class World:
    """A run's folder, its processes one after another, and a service."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.got, self.true = folder, [], []
        self.begin()

    def begin(self) -> None:
        self.tracker = kit.open_tracker(self.folder, URI, opener=lambda target: self.take)
        self.next = "taken"

    def take(self, ident, group, body):
        if self.next == "refused":
            raise ConnectionError("503")
        self.got.append(body)
        if self.next == "answer lost":
            raise TimeoutError("no answer")

    def happen(self) -> None:
        """Something comes to be true, and with it what was is still so."""
        self.true = kit.events(len(self.true) + 1)
        self.tracker.announce(self.true)

    def fill_disk(self, monkeypatch) -> None:
        """Half a line fits."""

        def write(handle, data):
            if len(data) < 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return WRITE(handle, data[: len(data) // 2])

        self.true = kit.events(len(self.true) + 1)
        with monkeypatch.context() as full, pytest.raises(StoreError, match="No space left"):
            full.setattr(module.os, "write", write)
            self.tracker.announce(self.true)

    def send(self, how: str) -> None:
        self.next = how
        with suppress(ConnectionError, TimeoutError):
            self.tracker._send_next()

    def lose_cursor(self, monkeypatch) -> None:
        """It was taken, and the disk has no room to say so."""
        self.next = "taken"

        def write_text(path, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full, suppress(OSError):
            full.setattr(Path, "write_text", write_text)
            self.tracker._send_next()

    def kill(self, half: int) -> None:
        """The process ends, perhaps in the midst of a line."""
        outbox = self.tracker._folder / module.OUTBOX
        with outbox.open("ab") as file:
            file.write(b'{"specversion": "1.0", "id": "uid-1/'[:half])
        self.begin()


WRITE = os.write
ACTS = st.one_of(
    st.just(("happen",)),
    st.just(("full",)),
    st.just(("cursor",)),
    st.tuples(st.just("send"), st.sampled_from(["taken", "refused", "answer lost"])),
    st.tuples(st.just("kill"), st.integers(0, 30)),
)


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(ACTS, max_size=14))
def test_whatever_happens_in_whatever_order(acts):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Teller", Still)
        world = World(Path(folder))
        for name, *words in acts:
            if name == "happen":
                world.happen()
            elif name == "full":
                world.fill_disk(patch)
            elif name == "cursor":
                world.lose_cursor(patch)
            elif name == "send":
                world.send(*words)
            else:
                world.kill(*words)
        world.tracker.announce(world.true)
        world.next = "taken"
        while world.tracker._send_next():
            pass

        first = list(dict.fromkeys(world.got))
        wanted = [f"uid-1/snapshot/0/{step}" for step in range(len(world.true))]
        assert [json.loads(body)["id"] for body in first] == wanted


def test_a_tracker_that_is_opened_again_sends_what_was_left(tmp_path, monkeypatch):
    kit.hurry(monkeypatch)
    monkeypatch.setattr(kit.telling, "CLOSE_FAILURES_MAX", 2)
    got = []

    def down(ident, group, body):
        raise ConnectionError("503")

    first = kit.open_tracker(tmp_path, URI, opener=lambda target: down)
    first.announce(kit.events(2))
    first.close()
    again = kit.open_tracker(
        tmp_path, URI, opener=lambda target: lambda ident, group, body: got.append(ident)
    )
    again.close()

    assert got == ["uid-1/snapshot/0/0", "uid-1/snapshot/0/1"]


@pytest.mark.parametrize(
    "uri",
    [
        "sqs://runs",
        "sqs://eu-central-1/1234/runs",
        "sqs://nowhere/123456789012/runs",
        f"sqs://eu-central-1/123456789012/{'x' * 81}",
        "sns://eu-central-1/123456789012/runs.txt",
        "sns://eu-central-1/123456789012/runs/more",
        "pubsub://p/runs",
        "pubsub://a-project/goog-runs",
        "pubsub://a-project/ru",
        "https://example.org/hook",
        "sqs://eu-central-1/123456789012/runs\n",
    ],
)
def test_what_is_no_queue_or_topic_is_refused_by_its_field(uri, tmp_path):
    assert parse_event_target(uri) is None
    named = [Tracking.model_validate({"events": {"uri": uri}})]
    with pytest.raises(SpecError, match=r"spec\.tracking\[0\]\.events\.uri: .*write sqs://REGION"):
        open_event_trackers(named, tmp_path, kit.SOURCE)


def test_a_manifest_s_targets_are_judged_before_anything_is_spent():
    spec = {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 1,
        },
        "tracking": [{"events": {"uri": one}} for one in ("sqs://runs", URI, URI)],
    }
    for platform in ("local", "cluster"):
        found = check_spec(RolloutRunSpec.model_validate(spec), Facts(platform=platform))
        assert {(one.field, one.reason) for one in found if "events" in one.field} == {
            ("spec.tracking[0].events.uri", "InvalidValue"),
            ("spec.tracking[2].events.uri", "DuplicateName"),
        }
