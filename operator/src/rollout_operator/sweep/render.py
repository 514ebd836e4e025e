"""A run of a sweep as an object, and the last look at it before it leaves. Pure."""

from __future__ import annotations

from typing import Any

from rollout_api import API_VERSION, names
from rollout_api.checks.sweeps.sweep import build_run_spec
from rollout_operator.cache.facts import SWEEP
from rollout_operator.run.index.references import RUN
from rollout_operator.run.permitted import refused_child
from rollout_operator.sweep.model import RunOrder, SweepSeen

PLACE_DIGITS = 3


def build_run(seen: SweepSeen, order: RunOrder) -> dict[str, Any]:
    """The RolloutRun with these values, which goes with its sweep. Raises NotSettable, ValueError."""
    assert seen.spec is not None
    return {
        "apiVersion": API_VERSION,
        "kind": RUN,
        "metadata": {
            "name": order.name,
            "namespace": seen.namespace,
            "labels": build_labels(seen.name),
            "ownerReferences": [owner_reference(seen.name, seen.uid)],
        },
        "spec": build_run_spec(seen.spec, seen.template, order.values),
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


def check_run(manifest: dict[str, Any], seen: SweepSeen) -> None:
    """Raises ChildRefused for what is no run of this sweep. It asks nothing of the code that rendered."""
    meta, head = manifest["metadata"], f"{seen.name}-"
    place = meta["name"].removeprefix(head)
    own = len(place) == PLACE_DIGITS and place.isascii() and place.isdigit()
    if (manifest["apiVersion"], manifest["kind"]) != (API_VERSION, RUN):
        raise refused_child(manifest, "kind", RUN, manifest["kind"])
    if meta["namespace"] != seen.namespace:
        raise refused_child(manifest, "metadata.namespace", seen.namespace, meta["namespace"])
    if not (meta["name"].startswith(head) and own):
        raise refused_child(manifest, "metadata.name", f"{head}NNN", meta["name"])
    if meta.keys() != {"name", "namespace", "labels", "ownerReferences"}:
        raise refused_child(manifest, "metadata", "name, labels and owner", sorted(meta))
    if meta["labels"] != build_labels(seen.name):
        raise refused_child(manifest, "metadata.labels", "those of its sweep", meta["labels"])
    if meta["ownerReferences"] != [owner_reference(seen.name, seen.uid)]:
        expected = f"sweep {seen.name}"
        raise refused_child(manifest, "metadata.ownerReferences", expected, meta["ownerReferences"])
