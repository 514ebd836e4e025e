"""A snapshot that is ordered of a live run is taken beside its work, signed from outside, and made once."""

import threading
import time

import msgspec
import pytest
from snapshot_kit import header_of, make_run, open_at, take

from rollout.errors import NoAnchorYet, StoreError
from rollout.protocol import messages as m
from rollout.runs.snapshots import ordered
from rollout.runs.snapshots.ordered import AT_ONCE_MAX, OrderedSnapshots, label_of
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import list_manifests
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import check_signature


class Run:
    """A run's folder, of which snapshots are ordered; ``signer`` has the key that the run has not."""

    def __init__(self, folder, signer):
        self.folder, self.signer = folder, signer
        self.place, self.made = open_at(folder / "objects"), 0
        self.steps = []
        self.orders = OrderedSnapshots(take=self.take, find=self.find)

    def take(self, label, signs, step):
        self.made += 1
        self.steps.append(step)
        anchor, taken = take(self.folder)
        return save_snapshot(self.place, header_of(anchor, label), taken, signs)

    def find(self, label):
        found = [one for one in list_manifests(self.place.named) if isinstance(one, Manifest)]
        return next((one for one in found if one.header.label == label), None)

    def ask(self, uid="u-1", **signed):
        return self.orders.answer(m.SnapshotOrder(snapshot=uid, name="best", **signed))

    def until(self, state, uid="u-1", **signed):
        for _ in range(3000):
            told = self.ask(uid, **signed)
            if told.state == state:
                return told
            time.sleep(0.01)
        raise AssertionError(f"still {told}")

    def sign(self, told, signer=None):
        bare = next(iter([self.unsigned(told)]))
        signature = (signer or self.signer).sign(bare).signature
        return {"id": told.id, "signer": signature.signer, "signature": signature.value}

    def unsigned(self, told):
        anchor, _ = take(self.folder)
        header = header_of(anchor, "")
        return Manifest(format=1, id=told.id, header=header, layers=())


@pytest.fixture
async def run(tmp_path, signer):
    await make_run(tmp_path)
    return Run(tmp_path, signer)


def test_it_is_durable_once_the_operator_has_vouched_for_it(run):
    assert run.ask().state == "Saving"
    told = run.until("Unsigned")
    assert list(list_manifests(run.place.named)) == []

    done = run.until("Taken", **run.sign(told))

    [manifest] = list_manifests(run.place.named)
    assert (done.id, done.step, {one.kind for one in done.layers}) == (
        manifest.id,
        manifest.header.step,
        {"train_state", "buffer"},
    )
    assert check_signature(manifest) == run.signer.public
    assert manifest.header.label == label_of(m.SnapshotOrder(snapshot="u-1", name="best"))


def test_the_step_that_is_meant_is_that_of_the_order(run):
    run.until("Unsigned", step=3)
    run.until("Unsigned", "u-2")
    assert run.steps == [3, None]


def test_a_coordinator_that_comes_back_finds_what_was_committed_and_makes_no_second(run):
    told = run.until("Unsigned")
    done = run.until("Taken", **run.sign(told))

    run.orders = OrderedSnapshots(take=run.take, find=run.find)

    assert run.until("Taken") == done
    assert run.made == 1


def test_one_that_died_before_begins_anew_and_nothing_was_committed(run):
    run.until("Unsigned")
    run.orders = OrderedSnapshots(take=run.take, find=run.find)
    told = run.until("Unsigned")
    run.until("Taken", **run.sign(told))
    assert len(list(list_manifests(run.place.named))) == 1


def test_a_signature_that_is_not_over_it_commits_nothing(run):
    told = run.until("Unsigned")
    wrong = {"id": told.id, "signer": run.signer.public, "signature": "00" * 64}

    failed = run.until("Failed", **wrong)

    assert failed.message.startswith("SnapshotRefused: ")
    assert list(list_manifests(run.place.named)) == []


def test_a_signature_of_another_id_is_left_alone(run):
    told = run.until("Unsigned")
    assert run.ask(id="0" * 64, signer=run.signer.public, signature="00" * 64) == told


def test_what_nobody_signs_is_given_up_and_may_be_ordered_again(run, monkeypatch):
    monkeypatch.setattr(ordered, "SIGNATURE_SECONDS", 0.2)
    run.ask()
    assert "was not signed" in run.until("Failed").message
    told = run.until("Unsigned")
    monkeypatch.setattr(ordered, "SIGNATURE_SECONDS", 60.0)
    run.until("Taken", **run.sign(told))


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (NoAnchorYet("none yet"), "Waiting", "none yet"),
        (StoreError("s3://b: 503"), "Failed", "StoreError: s3://b: 503"),
        (OSError("disk"), "Failed", "OSError: disk"),
        (RuntimeError("a bug"), "Failed", "internal error"),
    ],
)
def test_what_keeps_it_is_told_and_the_next_order_tries_again(run, error, state, words):
    def broken(*_):
        raise error

    run.orders = OrderedSnapshots(take=broken, find=run.find)
    assert words in run.until(state).message
    run.orders.take = run.take
    run.until("Unsigned")


def test_no_more_are_taken_at_once_than_may_be(run):
    gate, held = threading.Event(), OrderedSnapshots(take=run.take, find=run.find)
    held.take = lambda *order: gate.wait(60) and run.take(*order)
    for number in range(AT_ONCE_MAX):
        held.answer(m.SnapshotOrder(snapshot=f"u-{number}", name="a"))
    told = held.answer(m.SnapshotOrder(snapshot="late", name="a"))
    gate.set()
    assert (told.state, told.message) == ("Saving", "waits for other snapshots of this run")
    assert "late" not in held._orders


def test_any_name_makes_a_label_that_fits():
    ask = m.SnapshotOrder(snapshot="u" * 36, name="n" * 253)
    assert len(label_of(ask)) <= 80
    assert msgspec.json.decode(msgspec.json.encode(ask), type=m.SnapshotOrder) == ask
