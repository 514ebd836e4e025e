"""What an admission means for pods: node labels and tolerations of flavors, updates of admission checks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_operator.kueue.quota import Assignment, Quota
from rollout_operator.kueue.resources import GROUP
from rollout_operator.run.render.inputs import Placement

Document = Mapping[str, Any]
LABEL_POD_SET = f"{GROUP}/podset"
ANNOTATION_WORKLOAD = f"{GROUP}/workload"
ANNOTATION_ANYWHERE = f"{GROUP}/podset-unconstrained-topology"
TOPOLOGY_GATE = f"{GROUP}/topology"


def build_placement(quota: Quota, given: Assignment, flavors: Mapping[str, Document]) -> Placement:
    """Where one role's pods go. What an admission check says counts over a flavor."""
    specs: list[Document] = [flavors[name].get("spec") or {} for name in given.flavors]
    updates = [one for one in quota.updates if one["name"] == given.role]
    tolerations: list[Document] = []
    for source in (*specs, *updates):
        for one in source.get("tolerations") or ():
            tolerations += [one] if one not in tolerations else []
    marks = {ANNOTATION_WORKLOAD: quota.name} if given.topology else {}
    if given.topology and not given.asked:
        marks |= {ANNOTATION_ANYWHERE: "true"}
    named = {LABEL_POD_SET: given.role} if given.topology else {}
    return Placement(
        node_selector={
            **_merged(spec.get("nodeLabels") for spec in specs),
            **_merged(update.get("nodeSelector") for update in updates),
        },
        tolerations=tuple(dict(one) for one in tolerations),
        labels={**_merged(update.get("labels") for update in updates), **named},
        annotations={**_merged(update.get("annotations") for update in updates), **marks},
        gates=(TOPOLOGY_GATE,) if given.topology else (),
    )


def _merged(parts: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        found |= part or {}
    return found
