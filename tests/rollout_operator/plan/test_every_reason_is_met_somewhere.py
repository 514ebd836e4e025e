"""Each reason of the closed list can be met, and is as kstatus wants it."""

from dataclasses import replace
from datetime import timedelta

import pytest
from worlds import SPEC, World

from rollout import errors
from rollout_api.conditions import ConditionType, Reason
from rollout_operator.cache.children import Node
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.termination import WORDS, reason_of

ELSEWHERE = {
    "Queued": "queues",
    "QuotaReserved": "queues",
    "PartiallyAdmitted": "queues",
    "Evicted": "queues",
    "KueueNotInstalled": "queues",
    **dict.fromkeys(
        ("Saving", "DeadlineExceeded", "RunGone", "CoordinatorUnreachable", "WaitingForSnapshot"),
        "snapshots",
    ),
    **dict.fromkeys(
        ("Purging", "Purged", "PurgeGivenUp", "Verifying", "SnapshotRefused"),
        "snapshots that are deleted or exist, in simulation",
    ),
    **dict.fromkeys(
        (
            "Serving",
            "NoServerReady",
            "ScaledToZero",
            "RevisionCreated",
            "RevisionServes",
            "ProgressDeadlineExceeded",
            "Evaluating",
            "EvaluationFailed",
            "Baking",
            "CanaryWorse",
            "Autoscaled",
            "AutoscalerFailed",
            "RouteAccepted",
            "RouteNotAccepted",
            "KindNotServed",
        ),
        "endpoints",
    ),
    **dict.fromkeys(("RunStarted", "RunStopped", "RunForked", "RunEnded"), "sweeps"),
    "PodForceDeleted": "events of pods whose node is gone",
    "CRDOutdated": "what the API server refuses",
    "RecordUnverified": "records that are not ours",
    "RecordFormatUnknown": "records of another release",
    "NamespacedMode": "an operator that serves namespaces",
}
"""Met in tests of their own."""
REPORTED = {
    "WeightsVerified": ("WeightsVerified", "WeightsMismatch"),
    "Learning": ("Learning", "NoLearningSignal"),
    "LogprobsAgree": ("LogprobsAgree", "LogprobsDrift"),
    "TokensRoundTrip": ("Running", "TokenizationMismatch"),
    "RewardHolds": ("Running", "RewardDivergence"),
    "Tracking": ("Running", "TrackerFailed"),
    "Snapshotted": ("SnapshotTaken", "NoSnapshotYet"),
}
OUTCOMES = [
    "Failed",
    "GateFailed",
    "TooManyFailedRows",
    "NothingMeasured",
    "ModelNotFound",
    "DataNotFound",
    "BadRecord",
    "RewardError",
    "StorageUnreachable",
    "LedgerUnreachable",
    "LedgerBelongsToAnotherRun",
    "LedgerRewound",
    "LedgerCorrupt",
    "ActorsQuarantined",
]
GATES = [
    "InvalidSpec",
    "RuntimeNotFound",
    "CeilingExceeded",
    "NoSandbox",
    "NotAllowed",
    "ReferenceNotFound",
    "NoStorageClass",
    "NotSupported",
    "Valid",
    "WaitingForRun",
    "TooManyRuns",
    "Pending",
]
WAITS = {"WaitingForRun", "TooManyRuns"}
BLOCKS = ("ChildRefused", "FieldConflict", "Forbidden", "ApiServerRefused")


def running(**spec):
    world = World(spec={**SPEC, **spec})
    world.settle()
    return world


def gated(reason):
    world = World(gate=Blocked(reason=Reason(reason), message="m", stalled=reason not in WAITS))
    world.settle()
    return world


def blocked(reason):
    world = running()
    world.blocked = Blocked(reason=Reason(reason), message="m")
    world.settle()
    return world


def ended(reason):
    world = running()
    world.report(step=1, outcome={"kind": "Failed", "reason": reason, "message": "m"})
    world.settle()
    return world


def reported(kind, status, reason):
    world = running()
    said = {"type": kind, "status": status, "reason": reason, "message": "m"}
    world.report(step=1, conditions=[said])
    world.settle()
    return world


def waiting_pod(**state):
    world = running()
    name = "run-actors-0"
    world.pods[name] = replace(world.pods[name], phase="Pending", ready=False, **state)
    world.settle()
    return world


def succeeded():
    world = running()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    return world


def late(**limits):
    world = World(spec={**SPEC, "limits": limits}, pending=frozenset({"learner"}))
    for _ in range(20):
        world.tick(10)
    return world


def scheduled(state="Complete"):
    snapshots = {"everySteps": 20, "schedules": [{"name": "hundreds", "everySteps": 100}]}
    world = running(storage={"uri": "s3://b/runs"}, snapshots=snapshots)
    world.anchor(100)
    world.settle(2)
    world.finish(state)
    world.settle(2)
    return world


def too_long():
    world = running(limits={"activeSeconds": 600})
    world.now += timedelta(seconds=700)
    world.settle()
    return world


def tracked():
    limits = {"ttlSecondsAfterFinished": 0, "ttlAction": "DeleteRun"}
    world = World(spec={**SPEC, "limits": limits}, tracker="Argo CD keeps this object")
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    return world


def failing(reason="Error"):
    world = running(limits={"retries": 0})
    world.crash("run-learner-0", 137, "killed", reason=reason)
    world.settle()
    return world


def failing_often():
    world = running()
    for _ in range(4):
        world.crash("run-learner-0", 1)
        world.tick(1)
        world.tick(0)
        world.tick(0)
    return world


def suspended(*, going=False):
    world = running()
    world.change(suspend=True)
    world.frozen_pods = going
    for _ in range(40):
        world.tick(5)
    return world


def lost():
    world = running()
    silent = Node(name="node-a", version=1, unready_since=world.now)
    world.nodes = {"node-a": silent}
    for _ in range(20):
        world.tick(10)
    return world


def stuck():
    world = running()
    found = {"message": "m", "time": "2030-01-01T00:00:00Z"}
    world.report(attempt=1, step=1, stuck=found)
    world.settle()
    return world


def offline():
    sft = {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "s3://b/rows.jsonl"}}, "maxSteps": 1}
    return running(train=sft)


def evaluating():
    suite = {"suite": {"builtin": {"name": "arithmetic"}}}
    world = World(spec={"model": SPEC["model"], "evaluate": {}, "evaluations": [suite]})
    world.settle()
    return world


SCENES = {
    **{reason: (lambda r=reason: gated(r)) for reason in GATES},
    **{reason: (lambda r=reason: blocked(r)) for reason in BLOCKS},
    **{reason: (lambda r=reason: ended(r)) for reason in OUTCOMES},
    **{
        reason: (lambda k=kind, s=status, r=reason: reported(k, s, r))
        for kind, pair in REPORTED.items()
        for status, reason in zip(("True", "False"), pair, strict=True)
    },
    "Starting": lambda: World(pending=frozenset({"coordinator"})),
    "Running": running,
    "ActorsReady": running,
    "LearnerReady": running,
    "NoQueue": running,
    "Succeeded": succeeded,
    "Suspended": suspended,
    "Draining": lambda: suspended(going=True),
    "NoActorsNeeded": offline,
    "NoLearnerNeeded": evaluating,
    "ActorsNotReady": late,
    "LearnerNotReady": late,
    "GangIncomplete": lambda: late(gangSeconds=60),
    "PreRunningSecondsExceeded": lambda: late(preRunningSeconds=60),
    "ActiveSecondsExceeded": too_long,
    "RetriesExhausted": failing,
    "OutOfMemory": lambda: failing("OOMKilled"),
    "Restarting": failing_often,
    "ManagedByGitOps": tracked,
    "ImagePullFailed": lambda: waiting_pod(waiting="ImagePullBackOff"),
    "Unschedulable": lambda: waiting_pod(unschedulable="0/2 nodes are available"),
    "NodeLost": lost,
    "Scheduled": scheduled,
    "SnapshotFailed": lambda: scheduled("Failed"),
    "NoProgress": stuck,
}


def test_the_list_is_closed():
    names = {reason.value for reason in Reason}
    assert set(SCENES) | set(ELSEWHERE) == names


@pytest.mark.parametrize("reason", sorted(SCENES))
def test_it_can_be_met_and_the_status_reads_well(reason):
    world = SCENES[reason]()
    if not world.status:
        world.tick()
    conditions = world.status["conditions"]
    assert reason in {one["reason"] for one in conditions}, conditions
    check_kstatus(world)


def check_kstatus(world):
    """Ready is always there; abnormal conditions are there only when True, and not beside Ready=True."""
    kinds = {one["type"]: one for one in world.status["conditions"]}
    abnormal = {kind.value for kind in ConditionType if kind.polarity == "abnormal"}
    assert "Ready" in kinds
    assert all(one["observedGeneration"] == world.generation for one in kinds.values())
    assert all(kinds[name]["status"] == "True" for name in abnormal & set(kinds))
    assert not {"Reconciling", "Stalled"} <= set(kinds)
    if kinds["Ready"]["status"] == "True":
        assert not {"Reconciling", "Stalled"} & set(kinds)
    elif "Suspended" not in kinds:
        assert {"Reconciling", "Stalled"} & set(kinds), kinds


def test_words_of_the_data_plane_are_errors_that_it_has():
    known = {name for name in vars(errors) if isinstance(getattr(errors, name), type)}
    assert set(WORDS) <= known
    assert reason_of("LedgerBroken") is Reason.LEDGER_CORRUPT
    assert reason_of("SomethingNew") is Reason.FAILED
