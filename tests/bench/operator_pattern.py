"""What our operator wrote for one run, read back from the API server: the work of the twin and of the ceiling.

``managedFields`` say which fields were applied, so the pattern is what was sent, not what the server made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from operator_load import Made
from operator_sets import ANOTHER

from cluster.kubectl import Kubectl
from rollout_api import names
from rollout_operator.kube.managed_fields import project

KINDS = (
    "configmaps,serviceaccounts,rolebindings,services,networkpolicies,"
    "poddisruptionbudgets,statefulsets"
)
Document = dict[str, Any]


def read_pattern(kubectl: Kubectl, run: Made) -> Document:
    """Children in order, Secret, status and the first attempt's event, with the run's own name in them."""
    where = ("-n", run.namespace)
    label = f"{names.LABEL_RUN_UID}={run.uid}"
    found = kubectl.get(KINDS, *where, "-l", label, "--show-managed-fields")["items"]
    children = sorted((_applied(one) for one in found), key=_rank)
    live = kubectl.get("rolloutruns", run.name, *where, "--show-managed-fields")
    status = _applied(live, names.MANAGER_STATUS)
    return {
        "name": run.name,
        "namespace": run.namespace,
        "uid": run.uid,
        "managedBy": ANOTHER,
        "children": children,
        "secret": _bare(kubectl.get("secrets", names.certificate_name(run.name), *where)),
        "status": status,
        "event": next(_events(kubectl, run)),
    }


def _rank(child: Document) -> int:
    return {"ConfigMap": 0, "StatefulSet": 2}.get(child["kind"], 1)


def _applied(live: Document, manager: str = names.MANAGER_CHILDREN) -> Document:
    meta = live["metadata"]
    fields: Document = {}
    for entry in meta["managedFields"]:
        if entry["manager"] == manager and entry["operation"] == "Apply":
            fields = entry["fieldsV1"]
    made = project({k: v for k, v in live.items() if k not in ("apiVersion", "kind")}, fields)
    identity = {"name": meta["name"], "namespace": meta["namespace"]}
    made["metadata"] = {**made.get("metadata", {}), **identity}
    return {"apiVersion": live["apiVersion"], "kind": live["kind"], **made}


def _bare(live: Document) -> Document:
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    meta = {key: value for key, value in live["metadata"].items() if key in kept}
    return {**live, "metadata": meta}


def _events(kubectl: Kubectl, run: Made) -> Iterator[Document]:
    for live in kubectl.get("events.v1.events.k8s.io", "-n", run.namespace)["items"]:
        if live["regarding"].get("uid") == run.uid:
            kept = {k: v for k, v in live.items() if not k.startswith("deprecated")}
            yield _bare(kept)


def fill(text: str, pattern: Document, run: Made) -> str:
    """A part of the pattern for another run."""
    for key, value in (("name", run.name), ("namespace", run.namespace), ("uid", run.uid)):
        text = text.replace(pattern[key], value)
    return text


def parts(pattern: Document) -> dict[str, list[tuple[str, str, str]]]:
    """(kind, name, JSON) of each round of writes: one by one, eight at once, StatefulSets."""
    rounds: dict[str, list[tuple[str, str, str]]] = {"serial": [], "many": [], "workloads": []}
    where = {0: "serial", 1: "many", 2: "workloads"}
    for child in pattern["children"]:
        part = (child["kind"], child["metadata"]["name"], json.dumps(child, separators=(",", ":")))
        rounds[where[_rank(child)]].append(part)
    return rounds
