"""A run of a sweep as an object, a snapshot that one begins with, and the last look at them before they leave. Pure."""

from __future__ import annotations

import re
from typing import Any

from rollout_api import API_VERSION, names
from rollout_api.checks.sweeps.sweep import build_run_spec
from rollout_operator.cache.facts import SWEEP
from rollout_operator.run.index.references import RUN, SNAPSHOT
from rollout_operator.run.permitted import refused_child
from rollout_operator.sweep.model import ForkOrder, RunOrder, SweepSeen

_OWN = re.compile(r"(f?)[0-9]{3}")
"""What a name has behind that of the sweep; forks begin with a letter."""


def build_run(seen: SweepSeen, order: RunOrder) -> dict[str, Any]:
    """The RolloutRun with these values, which goes with its sweep. Raises NotSettable, ValueError."""
    assert seen.spec is not None
    spec = build_run_spec(seen.spec, seen.template, order.values)
    if order.snapshot:
        spec["restoreFrom"] = {"snapshotRef": {"name": order.snapshot}}
    return {"apiVersion": API_VERSION, "kind": RUN, **_meta(seen, order.name), "spec": spec}


def build_snapshot(seen: SweepSeen, order: ForkOrder) -> dict[str, Any]:
    """The RolloutSnapshot of a winner that a fork begins with; it goes with the sweep, and its bytes before it."""
    return {
        "apiVersion": API_VERSION,
        "kind": SNAPSHOT,
        **_meta(seen, order.name),
        "spec": {
            "source": {"run": {"name": order.run, "uid": order.run_uid}},
            "deletionPolicy": "Delete",
            "description": f"run {order.name} of sweep {seen.name} begins with it",
        },
    }


def _meta(seen: SweepSeen, name: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": seen.namespace,
            "labels": build_labels(seen.name),
            "ownerReferences": [owner_reference(seen.name, seen.uid)],
        }
    }


def build_labels(sweep: str) -> dict[str, str]:
    """Labels of all runs of a sweep."""
    return {
        names.LABEL_SWEEP: sweep,
        names.LABEL_PART_OF: "rollout",
        names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
    }


def owner_reference(name: str, uid: str) -> dict[str, Any]:
    """The sweep as the controller of a run. It does not wait for it when it is deleted: that takes a right of its own."""
    return {
        "apiVersion": API_VERSION,
        "kind": SWEEP,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def check_made(manifest: dict[str, Any], seen: SweepSeen) -> None:
    """Raises ChildRefused for what is no run of this sweep, and no snapshot of a fork. It asks nothing of the code that rendered."""
    meta, head, kind = manifest["metadata"], f"{seen.name}-", manifest["kind"]
    own = _OWN.fullmatch(meta["name"].removeprefix(head))
    if manifest["apiVersion"] != API_VERSION or kind not in (RUN, SNAPSHOT):
        raise refused_child(manifest, "kind", f"{RUN} or {SNAPSHOT}", kind)
    if kind == SNAPSHOT and own and not own[1]:
        raise refused_child(manifest, "metadata.name", f"{head}fNNN", meta["name"])
    if meta["namespace"] != seen.namespace:
        raise refused_child(manifest, "metadata.namespace", seen.namespace, meta["namespace"])
    if not (meta["name"].startswith(head) and own):
        raise refused_child(manifest, "metadata.name", f"{head}NNN or {head}fNNN", meta["name"])
    if meta.keys() != {"name", "namespace", "labels", "ownerReferences"}:
        raise refused_child(manifest, "metadata", "name, labels and owner", sorted(meta))
    if meta["labels"] != build_labels(seen.name):
        raise refused_child(manifest, "metadata.labels", "those of its sweep", meta["labels"])
    if meta["ownerReferences"] != [owner_reference(seen.name, seen.uid)]:
        expected = f"sweep {seen.name}"
        raise refused_child(manifest, "metadata.ownerReferences", expected, meta["ownerReferences"])
