"""What the operator makes of a run: its children, what stands before its first pod, and what it decides in time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator"))

from worlds import PLATFORM, World

from rollout_api.checks import check_document
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec
from rollout_operator.cache.children import Node
from rollout_operator.run.attempt import build_children
from rollout_operator.run.controller import _is_ours
from rollout_operator.run.index.references import restored_name, runtime_keys
from rollout_operator.run.plan.model import ROLES
from rollout_operator.run.plan.preconditions.allowed import check_allowed, check_namespace
from rollout_operator.run.plan.preconditions.checks import (
    actors_ceiling,
    check_form,
    check_platform,
    check_queue,
    queue_of,
    referenced,
    resolve_spec,
)
from rollout_operator.run.plan.preconditions.restoring import (
    RestoreSource,
    order_restore,
    source_at,
)
from rollout_operator.run.plan.preconditions.storage import Class, access_mode, check_storage
from rollout_operator.run.plan.preconditions.upstreams import (
    Readable,
    Upstream,
    check_upstreams,
    from_runs,
    handed_on,
    wanted_model,
)
from rollout_operator.run.render.inputs import Inputs
from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.workloads import wanted_replicas

CLASSES = (
    Class(name="fast", provisioner="csi", default=True),
    Class(name="slow", provisioner="nfs", default=False),
)
MODELS = {"lastSnapshot": {"modelURI": "s3://b/last"}, "best": {"modelURI": "s3://b/best"}}


def build_inputs(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Inputs:
    """One run attempt on a runtime; storage classes as ``CLASSES`` has them."""
    parsed = ClusterRuntimeSpec.model_validate(runtime)
    spec = resolve_spec(run["spec"], parsed)
    ledger = spec.storage.ledger if spec.storage else None
    return Inputs(
        name="run",
        namespace="ns",
        uid="uid-0001",
        attempt=1,
        spec=spec,
        runtime=parsed,
        platform=replace(PLATFORM, pod_monitors=True),
        storage_class=ledger.sqlite.storage_class_name if ledger and ledger.sqlite else None,
        access_mode=access_mode(spec, CLASSES, frozenset({"csi"})),
    )


def observe_children(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """Every child, and what the processes in it are told beside the spec itself."""
    inputs = build_inputs(run, runtime)
    order = build_order(inputs).model_dump(mode="json", exclude={"spec"})
    replicas = {role: wanted_replicas(inputs, role) for role in ROLES}
    return json.dumps([build_children(inputs, "record"), order, replicas], sort_keys=True)


def observe_start(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """What is asked for before the first pod, and which answer holds the run back."""
    parsed = ClusterRuntimeSpec.model_validate(runtime)
    spec = resolve_spec(run["spec"], parsed)
    queue = queue_of(spec, parsed, run["metadata"].get("labels", {}))
    wanted = [wanted_model(one) for one in from_runs(run["spec"])]
    upstreams = [
        handed_on(name, "u", snapshot, MODELS) if name == "known" else _missing(name, snapshot)
        for name, snapshot in wanted
    ]
    return (
        check_form(run),
        check_namespace(parsed, "runtime", "ns"),
        check_namespace(parsed, "runtime", "ns", {"team": "a"}),
        check_allowed(RolloutRunSpec.model_validate(run["spec"]), parsed.allowed, "ns"),
        check_platform(spec, parsed),
        actors_ceiling(spec, parsed),
        (queue, check_queue(queue, served=False)),
        check_storage(spec, CLASSES),
        access_mode(spec, CLASSES, frozenset({"csi"})),
        sorted(referenced(run["spec"])),
        [one.uri for one in upstreams],
        check_upstreams(upstreams),
        runtime_keys("ns", run["spec"].get("runtimeRef")),
        restored_name(run["spec"]),
        _restored_place(spec),
        order_restore(TAKEN, spec.restore_from, parsed, ()),
        _is_ours(run["spec"]),
        run["metadata"]["name"],
    )


TAKEN = RestoreSource(name="a", state="Taken", id="0" * 64, place="s3://b/ns/a")


def _restored_place(spec: RolloutRunSpec) -> Any:
    given = spec.restore_from.object if spec.restore_from is not None else None
    readable = Readable(namespace="ns", roots=("s3://b",), lists=Allowed())
    return None if given is None else source_at(given, readable)


def _missing(name: str, snapshot: str) -> Upstream:
    return Upstream(name=name, snapshot=snapshot, state="Missing")


def observe_course(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """The conditions of the run, its pods and its children over time, under five kinds of trouble."""
    del runtime
    return [
        story(World(spec=dict(run["spec"])))
        for story in (_waits, _works, _is_lost, _crashes, _ends)
    ]


def _seen(world: World) -> Any:
    conditions = [
        (one["type"], one["status"], one["reason"]) for one in world.status.get("conditions", ())
    ]
    return conditions, world.replicas(), world.removed, world.deleted, _incarnation(world)


def _look(world: World, *seconds: float) -> list[Any]:
    seen = []
    for pause in seconds:
        world.now += timedelta(seconds=pause)
        world.settle(4)
        seen.append(_seen(world))
    return seen


def _waits(world: World) -> Any:
    world.pending = frozenset({"learner"})
    world.settle(4)
    return _look(world, 100, 300, 600, 1000, 3000)


def _works(world: World) -> Any:
    world.settle(4)
    world.report(step=1, attempt=1)
    return _look(world, 100, 5000, 50_000)


def _is_lost(world: World) -> Any:
    world.watches_nodes = True
    world.settle(4)
    world.nodes = {"node-a": Node(name="node-a", version=1, unready_since=world.now)}
    return _look(world, 30, 60, 100, 500)


def _crashes(world: World) -> Any:
    world.settle(4)
    seen = []
    for count in (1, 4, 11):
        if "run-coordinator-0" in world.pods:
            world.crash("run-coordinator-0", 1, "x", count)
        seen += _look(world, 10)
    return seen


def _ends(world: World) -> Any:
    world.settle(4)
    world.report(
        step=3, attempt=1, outcome={"kind": "Succeeded", "reason": "Done", "message": "all steps"}
    )
    return _look(world, 10, 100, 1000, 10_000)


def observe_refusal(run: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """Every error and warning, by field and reason."""
    return refusals(run), refusals({"kind": "ClusterRolloutRuntime", "spec": runtime})


def refusals(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Field and reason of every error."""
    head = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "a"}}
    found = check_document({**head, **document})
    return [(one.field, one.reason) for one in found if one.severity == "error"]


def _incarnation(world: World) -> int:
    return world.incarnation if "learner" in world.workloads else 0
