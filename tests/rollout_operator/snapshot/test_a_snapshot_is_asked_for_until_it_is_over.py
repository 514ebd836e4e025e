"""A RolloutSnapshot of a run: asked of its coordinator, signed by the operator, told as it is, and final once it is over.

The operator may be started again between any two of its calls and writes: it remembers nothing.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from worlds import World

from rollout.runs.snapshots.ordered import describe
from rollout.snapshots.manifest import Signature, build_manifest
from rollout.snapshots.signing import check_signature
from rollout_api.names import LABEL_SCHEDULE
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.snapshot import SnapshotStatus
from rollout_api.v1alpha1.storage import Storage
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import Conflict, CoordinatorUnreachable, Forbidden, Unavailable
from rollout_operator.run.coordinator import CALLS_MAX
from rollout_operator.run.index.store import RunStore
from rollout_operator.snapshot.controller import SnapshotController
from rollout_operator.snapshot.keys import SnapshotSigner
from rollout_operator.snapshot.purge.plan import wants_finalizer

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key(namespace="ns", name="best", kind="RolloutSnapshot")
ID = "ab" * 32
LAYERS = [
    {"kind": "train_state", "digest": "c" * 64, "size_bytes": 100, "grade": "exact"},
    {"kind": "buffer", "digest": "d" * 64, "size_bytes": 20, "grade": "exact"},
]
WHOLE = {"id": ID, "step": 40, "grade": "exact", "size_bytes": 120, "layers": LAYERS}
SIGNER = SnapshotSigner(b"k" * 32)


class Cluster:
    """A store, a run at work and its coordinator; ``open`` is a new operator that remembers nothing."""

    def __init__(self, *answers, spec=None, run="uid-0001"):
        self.moment, self.answers, self.orders, self.told = BEGIN, list(answers), [], []
        self.broken, self.kept = {}, []
        self.calls = 0
        self.counted = []
        self.spec = {"source": {"run": {"name": "run"}}, **(spec or {})}
        self.labels = {}
        self.status, self.version, self.generation = {}, 1, 1
        self.run, self.world = run, World()
        self.seen = {}
        self.storage = Storage.model_validate({"uri": "s3://b/runs"})
        self.open()

    def open(self):
        self.store, self.queue = RunStore(), KeyQueue()
        if self.run:
            meta = {"name": "run", "namespace": "ns", "uid": self.run, "resourceVersion": "1"}
            self.store.put_object("RolloutRun", {"metadata": meta, "spec": {}})
        meta = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
        self.store.put_object("ClusterRolloutRuntime", {"metadata": meta, "spec": {}})
        self.store.put_object("RolloutSnapshot", self.live())
        self.controller = SnapshotController(
            store=self.store,
            queue=self.queue,
            look=self.look,
            coordinators=self,
            signer=self.signer,
            send=self.send,
            purger=self,
            adopter=None,
            clocks=Clock(self),
            count=lambda seconds, num_bytes: self.counted.append((seconds, num_bytes)),
        )

    def live(self):
        meta = {
            "name": "best",
            "namespace": "ns",
            "uid": "u-1",
            "resourceVersion": str(self.version),
            "generation": self.generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": self.labels,
        }
        return {"metadata": meta, "spec": self.spec, "status": self.status}

    def look(self, stored):
        observed = self.world.observe()
        spec = observed.spec.model_copy(update={"storage": self.storage})
        return replace(observed, uid=stored.uid, spec=spec, **self.seen)

    # -- what the controller calls ---------------------------------------------------------------------

    async def signer(self):
        self._count("key")
        return SIGNER

    async def keep_finalizer(self, stored, status):
        """Its own tests, with the real one: `simulation/test_a_deleted_snapshot_ends_whatever_fails.py`."""
        self.kept.append(wants_finalizer(policy=self.spec.get("deletionPolicy", ""), status=status))
        return stored

    async def snapshot(self, observed, body):
        self._count("order")
        self.orders.append((observed.uid, dict(body)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer) if isinstance(answer, dict) else answer

    async def send(self, stored, status):
        self._count("status")
        SnapshotStatus.model_validate(status)
        self.told.append(status)
        self.status, self.version = status, self.version + 1
        self.store.put_object("RolloutSnapshot", self.live(), notify=False)
        self._count("status, after it was written")

    def _count(self, what):
        self.calls += 1
        if (error := self.broken.get(self.calls)) is not None:
            raise type(error)(f"{what} {error.what}", error.status, error.message)

    async def reconcile(self):
        return await self.controller.reconcile(KEY)

    def condition(self, kind):
        found = [one for one in self.status["conditions"] if one["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else None


class Clock:
    """The clock of a cluster."""

    def __init__(self, cluster):
        self.cluster = cluster

    def now(self):
        return self.cluster.moment

    def monotonic(self):
        return 0.0


def cluster(*answers, ready=True, **given):
    made = Cluster(*answers, **given)
    if ready:
        for _ in range(5):
            made.world.tick()
    return made


UNSIGNED = {"state": "Unsigned", **WHOLE}
SAVING = {"state": "Saving"}
TAKEN = {"state": "Taken", **WHOLE}


async def test_it_is_saved_signed_and_told_with_its_place():
    one = cluster(SAVING, UNSIGNED, SAVING, TAKEN)
    assert await one.reconcile() == pytest.approx(2.0)
    assert (one.condition("Ready"), one.condition("Reconciling")) == (
        ("False", "Saving"),
        ("True", "Saving"),
    )
    await one.reconcile()
    assert await one.reconcile() is None
    assert [body.get("id") for _, body in one.orders] == [None, None, ID, None]
    assert one.orders[2][1]["signature"] == SIGNER.sign("ns", "uid-0001", ID)
    for kind in ("Ready", "Complete", "Finished"):
        assert one.condition(kind) == ("True", "SnapshotTaken")
    assert one.condition("Reconciling") is None
    assert one.status["location"] == {
        "object": {"uri": f"s3://b/runs/ns/uid-0001/snapshots/manifests/{ID}.json"}
    }
    assert (one.status["digest"], one.status["step"]) == (f"blake3:{ID}", 40)
    assert [layer["name"] for layer in one.status["layers"]] == ["TrainState", "Buffer"]
    assert one.status["run"] == {"name": "run", "uid": "uid-0001"}
    assert one.status["runtimeRef"] == {"kind": "ClusterRolloutRuntime", "name": "default"}
    assert one.status["storage"] == {"uri": "s3://b/runs"}
    assert one.condition("Supported") == ("False", "NotSupported")


async def test_a_step_that_is_named_is_asked_for_and_one_that_is_not_kept_fails_for_good():
    words = "SpecError: step 40: run run keeps anchors of steps 60, 80, 100"
    one = cluster(
        SAVING,
        {"state": "Failed", "message": words},
        spec={"source": {"run": {"name": "run", "step": 40}}},
    )
    await one.reconcile()
    assert await one.reconcile() is None
    assert [body["step"] for _, body in one.orders] == [40, 40]
    assert one.condition("Failed") == ("True", "InvalidSpec")
    assert one.status["conditions"][0]["message"] == words


async def test_a_suspended_run_whose_coordinator_stays_for_it_is_asked():
    one = cluster(SAVING, UNSIGNED, TAKEN)
    one.labels = {LABEL_SCHEDULE: "suspend"}
    one.open()
    one.seen = {"suspend": True}
    for _ in range(3):
        await one.reconcile()
    assert one.condition("Complete") == ("True", "SnapshotTaken")


async def test_a_run_that_goes_before_its_first_anchor_is_waited_for_by_nobody():
    one = cluster({"state": "Waiting", "message": "no anchor yet"})
    one.labels = {LABEL_SCHEDULE: "suspend"}
    one.open()
    one.seen = {"suspend": True}
    assert await one.reconcile() is None
    assert one.condition("Failed") == ("True", "NoSnapshotYet")


async def test_what_became_durable_is_counted_once_with_its_seconds_and_bytes():
    one = cluster(SAVING, UNSIGNED, TAKEN)
    await one.reconcile()
    one.moment += timedelta(seconds=30)
    await one.reconcile()
    await one.reconcile()

    assert one.counted == [(30.0, WHOLE["size_bytes"])]


async def test_what_is_over_is_looked_at_no_more_whatever_becomes_of_its_run():
    one = cluster(TAKEN)
    await one.reconcile()
    one.run, before = "", len(one.told)
    one.open()
    one.moment = BEGIN + timedelta(days=9)
    assert await one.reconcile() is None
    one.generation = 2
    one.open()
    await one.reconcile()
    await one.reconcile()
    assert len(one.told) == before + 1
    assert one.condition("Ready") == ("True", "SnapshotTaken")
    assert {c["observedGeneration"] for c in one.status["conditions"]} == {2}
    assert one.status["digest"] == f"blake3:{ID}"


@pytest.mark.parametrize("dies_at", range(1, 12))
async def test_an_operator_that_ends_between_any_two_calls_comes_to_the_same(dies_at):
    """The coordinator of this test remembers, as the real one does: it is signed once it has a signature."""
    one = cluster(SAVING)
    coordinator = Remembering()
    one.controller.coordinators = coordinator
    one.broken = {dies_at: Unavailable("cut", 503, "gone")}
    for _ in range(12):
        try:
            await one.reconcile()
        except Unavailable:
            one.open()
        one.controller.coordinators = coordinator.through(one)
    assert one.condition("Ready") == ("True", "SnapshotTaken")
    assert coordinator.made == 1


class Remembering:
    """A coordinator: saving, then unsigned until it is signed, then taken; the world's counter sees every call."""

    def __init__(self):
        self.made, self.looks, self.signed, self.one = 0, 0, False, None

    def through(self, one):
        self.one = one
        return self

    async def snapshot(self, observed, body):
        del observed
        if self.one is not None:
            self.one._count("order")
        self.looks += 1
        if body.get("signature"):
            self.made += not self.signed
            self.signed = True
        state = "Taken" if self.signed else ("Saving" if self.looks < 2 else "Unsigned")
        return json.dumps({"state": state, **(WHOLE if state != "Saving" else {})})


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([{"state": "Waiting", "message": "no anchor yet"}], "NoSnapshotYet"),
        ([{"state": "Failed", "message": "StoreError: s3://b: 503"}], "StorageUnreachable"),
        ([{"state": "Failed", "message": "LedgerFull: no room"}], "Failed"),
        ([CoordinatorUnreachable("refused")], "CoordinatorUnreachable"),
        (["[" * 40_000], "CoordinatorUnreachable"),
        (['{"state": "Taken"}'], "CoordinatorUnreachable"),
        ([{"state": "Taken", **WHOLE, "id": "../../x"}], "CoordinatorUnreachable"),
        ([{"state": "Taken", **WHOLE, "layers": LAYERS * 2}], "CoordinatorUnreachable"),
        ([{"state": "Taken", **WHOLE, "step": -1}], "CoordinatorUnreachable"),
    ],
)
async def test_what_keeps_it_is_told_and_tried_again_until_its_deadline(answers, reason):
    one = cluster(*answers, spec={"deadlineSeconds": 60})
    assert await one.reconcile() > 0
    assert one.condition("Ready") == ("False", reason)
    assert one.condition("Failed") is None
    one.moment = BEGIN + timedelta(seconds=61)
    assert await one.reconcile() is None
    for kind in ("Failed", "Finished", "Stalled"):
        assert one.condition(kind) == ("True", "DeadlineExceeded")
    assert "location" not in one.status


async def test_it_looks_again_no_later_than_its_deadline():
    one = cluster(SAVING, spec={"deadlineSeconds": 1})
    one.moment = BEGIN + timedelta(seconds=0.4)
    assert await one.reconcile() <= 1.2


@pytest.mark.parametrize(
    ("given", "reason", "final"),
    [
        ({"run": ""}, "ReferenceNotFound", False),
        ({"spec": {"source": {"run": {"name": "run", "uid": "other"}}}}, "RunGone", True),
        ({"spec": {"include": ["Process"]}}, "NotSupported", True),
        ({"spec": {"storageRef": {"name": "archive"}}}, "NotSupported", True),
        ({"spec": {"source": {}}}, "InvalidSpec", True),
    ],
)
async def test_what_cannot_be_is_said_and_nobody_is_asked(given, reason, final):
    one = cluster(SAVING, **given)
    await one.reconcile()
    assert one.condition("Ready") == ("False", reason)
    assert (one.condition("Failed") is not None) is final
    assert one.orders == []


async def test_bytes_on_a_volume_are_not_promised_to_go():
    """What lies there goes with its claim; where the wish comes later than the snapshot, that is said, too."""
    one = cluster(SAVING, spec={"deletionPolicy": "Delete"})
    one.storage = None
    await one.reconcile()
    assert one.condition("Failed") == ("True", "NotSupported")
    assert one.orders == []
    await one.reconcile()
    assert one.kept == [True, False]
    other = cluster(TAKEN)
    other.storage = None
    await other.reconcile()
    other.spec, other.generation = {**other.spec, "deletionPolicy": "Delete"}, 2
    other.open()
    await other.reconcile()
    await other.reconcile()
    assert other.condition("Purged") == ("False", "NotSupported")
    assert other.condition("Ready") == ("True", "SnapshotTaken")
    assert other.kept == [False, False, False]
    assert len(other.told) == 2


async def test_its_bytes_are_to_go_with_it_before_there_are_any():
    one = cluster(SAVING, spec={"deletionPolicy": "Delete"})
    await one.reconcile()
    assert one.kept == [True]
    assert len(one.orders) == 1


async def test_a_run_that_comes_later_is_the_one_that_is_meant():
    one = cluster(TAKEN, run="")
    await one.reconcile()
    one.run = "uid-0001"
    one.open()
    await one.reconcile()
    assert one.condition("Ready") == ("True", "SnapshotTaken")


@pytest.mark.parametrize("becomes", ["", "uid-2"])
async def test_a_run_that_goes_meanwhile_fails_it_for_good(becomes):
    one = cluster(SAVING)
    await one.reconcile()
    one.run = becomes
    one.open()
    assert await one.reconcile() is None
    assert one.condition("Failed") == ("True", "RunGone")
    assert one.status["run"]["uid"] == "uid-0001"


async def test_a_run_that_has_ended_has_nobody_who_could_take_it():
    one = cluster(SAVING)
    ended = {
        "type": "Finished",
        "status": "True",
        "reason": "Succeeded",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    one.seen = {"status": RunStatus.model_validate({"conditions": [ended]})}
    await one.reconcile()
    assert one.condition("Failed") == ("True", "RunGone")


@pytest.mark.parametrize(
    ("seen", "reason"), [({"suspend": True}, "Suspended"), ({"pods": ()}, "Starting")]
)
async def test_a_run_that_does_not_answer_yet_is_waited_for(seen, reason):
    one = cluster(TAKEN)
    one.seen = seen
    assert await one.reconcile() > 0
    assert one.condition("Ready") == ("False", reason)
    one.seen = {}
    await one.reconcile()
    assert one.condition("Ready") == ("True", "SnapshotTaken")


async def test_a_missing_right_is_told_and_a_conflict_is_the_queues():
    one = cluster(UNSIGNED)
    one.broken = {1: Forbidden("get secrets x", 403, "cannot get")}
    assert await one.reconcile() > 0
    assert one.condition("Stalled") == ("True", "Forbidden")
    one.broken = {one.calls + 4: Conflict("apply status", 409, "changed")}
    one.answers = [SAVING]
    with pytest.raises(Conflict):
        await one.reconcile()
        await one.reconcile()


async def test_nothing_is_written_twice():
    one = cluster(SAVING)
    for _ in range(4):
        await one.reconcile()
    assert len(one.told) == 1


async def test_a_namespace_whose_coordinators_are_silent_holds_no_more_workers_than_it_may():
    one = cluster(SAVING)
    with one.controller.calls.place("ns"), one.controller.calls.place("ns"):
        assert CALLS_MAX == 2
        assert await one.reconcile() == pytest.approx(1.0)
    assert one.orders == []


def test_the_signature_is_what_a_restore_asks_for():
    from rollout.snapshots.manifest import LayerRecord, RunFacts, SnapshotHeader

    facts = RunFacts(
        name="run",
        namespace="ns",
        uid="uid-0001",
        algorithm="grpo",
        spec_digest="",
        identity_format=2,
        identity={},
        contents={},
        dtype="Float32",
        threads=1,
    )
    header = SnapshotHeader(
        created_at=1.0, label="", run=facts, lineage=0, step=4, chain="", grade="exact", runtime={}
    )
    layer = LayerRecord(
        kind="train_state", grade="exact", restore_scope="anywhere", facts={}, parts=()
    )
    bare = build_manifest(header, [layer])
    value = SIGNER.sign("ns", "uid-0001", bare.id)
    signed = type(bare)(
        **{n: getattr(bare, n) for n in ("format", "id", "header", "layers")},
        signature=Signature(signer=SIGNER.public, value=value),
    )
    assert check_signature(signed) == SIGNER.public
    assert describe(signed, "Taken").id == bare.id


MEMORY = {"kind": "episodic_memory", "digest": "e" * 64, "size_bytes": 7, "grade": "exact"}


@pytest.mark.parametrize(
    ("include", "layers", "says"),
    [
        (["EpisodicMemory"], [*LAYERS, MEMORY], ""),
        (["EpisodicMemory", "Buffer"], LAYERS, "it has no EpisodicMemory"),
        (["Buffer"], LAYERS, ""),
    ],
)
async def test_memory_that_is_asked_for_by_name_is_taken_or_said_to_be_none(include, layers, says):
    one = cluster({**TAKEN, "layers": layers}, spec={"include": include})
    await one.reconcile()
    assert one.condition("Complete") == ("True", "SnapshotTaken")
    names = [layer["name"] for layer in one.status["layers"]]
    assert ("EpisodicMemory" in names) == (MEMORY in layers)
    ready = next(c["message"] for c in one.status["conditions"] if c["type"] == "Ready")
    assert says in ready
    assert ("EpisodicMemory" in ready) == bool(says)
