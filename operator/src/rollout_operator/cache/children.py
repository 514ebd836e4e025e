"""What is there: children, pods and nodes as a handful of scalars each, parsed from API objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from rollout_api import GROUP, names
from rollout_operator.cache.answers import Answer, read_answer
from rollout_operator.controller.times import parse_time, read_time
from rollout_operator.kube.managed_fields import controller_uid, fields_digest, owned_digest
from rollout_operator.signing import FORMAT_UNSAID, record_content, record_format

Document = Mapping[str, Any]
NODE_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
PROGRESS_DEADLINE = "ProgressDeadlineExceeded"
_OWNERS = ((names.LABEL_RUN, "RolloutRun"), (names.LABEL_ENDPOINT, "RolloutEndpoint"))
WORK_CONTAINERS = ("coordinator", "learner", "actor", "engine")
NUMBER_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is particular to a StatefulSet. ``hold_until``: no pods before that time (RFC 3339).

    ``first``: the incarnation that the run attempt began with.
    """

    replicas: int
    incarnation: int = 0
    first: int = 1
    disruptions: int = 0
    gang_tries: int = 0
    hold_until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What is particular to a Deployment. ``ready``: pods of its template that are. ``observed``: its controller has seen its spec.

    ``revision`` is the endpoint's. ``late``: what the controller says of one that did not come up in time; ``failed``: what
    we noted of it. ``created`` is RFC 3339. ``tls``: clients of its pods speak that.
    """

    revision: str
    replicas: int
    pods: int = 0
    ready: int = 0
    observed: bool = False
    late: str = ""
    failed: str = ""
    created: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One object that belongs to a run or an endpoint, whose name and UID are ``run`` and ``run_uid``.

    ``selects``: the revision that an endpoint's Service sends requests to. ``answer``: what is said of an autoscaler or a route.
    ``digest`` is what was applied, ``owned`` what of it is there now: they differ after a drift.
    ``fields``: which fields are ours; while that stays, so does ``owned``.
    ``expected``: what a record says there must be, ``generation`` and ``settled`` what it was rendered from, ``content`` the
    digest of all it says, ``signature`` the proof of that: believed only where it verifies; ``format`` the
    number of its form.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    run: str
    run_uid: str
    attempt: int = 0
    deleting: bool = False
    digest: str = ""
    owned: str = ""
    fields: str = ""
    expected: str = ""
    generation: int = 0
    settled: str = ""
    content: str = ""
    signature: str = ""
    format: str = FORMAT_UNSAID
    workload: Workload | None = None
    deployed: Deployed | None = None
    selects: str = ""
    answer: Answer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended last."""

    container: str
    exit_code: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a run. ``waiting``: why a container cannot start; ``restarts`` of its containers.

    ``owner`` is the UID of the StatefulSet that controls it.
    """

    namespace: str
    name: str
    uid: str
    version: int
    owner: str = ""
    run: str
    run_uid: str
    role: str
    attempt: int
    incarnation: int
    created: datetime
    phase: str
    ready: bool = False
    node: str = ""
    restarts: int = 0
    waiting: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    disrupted: bool = False
    deleting: bool = False
    ended: Ended | None = None

    @property
    def ordinal(self) -> int:
        """Its place in the StatefulSet."""
        tail = self.name.rpartition("-")[2]
        return int(tail) if tail.isdigit() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. ``unready_since`` is None while it answers."""

    name: str
    version: int
    uid: str = ""
    unready_since: datetime | None = None
    out_of_service: bool = False


def is_drifted(child: Child, accepted: Mapping[str, str]) -> bool:
    """Whether our fields are no longer what we wrote, nor what the server made of it."""
    return child.owned != child.digest and accepted.get(child.uid) != child.owned


def parse_child(
    kind: str, live: Document, known: Child | None = None, *, written: bool = False
) -> Child | None:
    """A child's scalars; None for what is no run's and no endpoint's child.

    ``known``: the same child at an older version. ``written``: this is the answer to our own write; what
    the server made of it is what we wanted.
    """
    meta = live["metadata"]
    labels = meta.get("labels") or {}
    name, owner = _owner(meta, labels)
    if not owner:
        return None
    annotations = meta.get("annotations") or {}
    digest = annotations.get(names.ANNOTATION_APPLIED, "")
    expected = annotations.get(names.ANNOTATION_CHILDREN, "") if kind == "ConfigMap" else ""
    fields = fields_digest(dict(live))
    return Child(
        kind=kind,
        namespace=intern(meta.get("namespace", "")),
        name=meta["name"],
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        run=intern(name),
        run_uid=intern(owner),
        attempt=_number(labels.get(names.LABEL_ATTEMPT)),
        deleting="deletionTimestamp" in meta,
        digest=digest,
        owned=digest if written else _owned(live, known, digest, fields),
        fields=fields,
        expected=expected,
        generation=_number(annotations.get(names.ANNOTATION_GENERATION)),
        settled=intern(annotations.get(names.ANNOTATION_SETTLED, "")) if expected else "",
        content=record_content(live) if expected else "",
        signature=annotations.get(names.ANNOTATION_SIGNATURE, "") if expected else "",
        format=intern(record_format(annotations)) if expected else FORMAT_UNSAID,
        workload=_workload(live) if kind == "StatefulSet" else None,
        deployed=_deployed(live) if kind == "Deployment" else None,
        selects=_selects(live) if kind == "Service" else "",
        answer=read_answer(kind, live),
    )


def _owner(meta: Document, labels: Document) -> tuple[str, str]:
    """Name and UID of the object of ours that it belongs to: labels find, ownership decides."""
    for label, kind in _OWNERS:
        if label in labels and (uid := controller_uid(meta, GROUP, kind)):
            return labels[label], uid
    return "", ""


def _deployed(live: Document) -> Deployed:
    meta, spec, status = live["metadata"], live["spec"], live.get("status") or {}
    seen = status.get("observedGeneration", 0) >= meta.get("generation", 0)
    conditions = {one["type"]: one for one in status.get("conditions") or ()} if seen else {}
    progress = conditions.get("Progressing", {})
    late = progress.get("reason") == PROGRESS_DEADLINE
    return Deployed(
        revision=meta["name"],
        replicas=spec.get("replicas", 1),
        pods=status.get("replicas", 0),
        ready=min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0)),
        observed=seen,
        late=(progress.get("message") or "late")[:500] if late else "",
        failed=(meta.get("annotations") or {}).get(names.ANNOTATION_FAILED, "")[:500],
        created=meta.get("creationTimestamp", ""),
        tls=_serves_tls(spec),
    )


def _serves_tls(spec: Document) -> bool:
    """Whether a pod keeps a port for itself beside that of its clients: then theirs is with TLS."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    ports = [port for one in containers for port in one.get("ports") or ()]
    return any(port.get("name") == names.PORT_INSIDE for port in ports)


def _selects(live: Document) -> str:
    selector = (live.get("spec") or {}).get("selector") or {}
    return selector.get(names.LABEL_REVISION, "")


def _owned(live: Document, known: Child | None, digest: str, fields: str) -> str:
    same = known is not None and known.uid == live["metadata"]["uid"]
    if known is not None and same and (known.digest, known.fields) == (digest, fields):
        return known.owned
    owned = owned_digest(dict(live))
    return digest if owned == digest else owned


def _workload(live: Document) -> Workload:
    spec = live["spec"]
    annotations = live["metadata"].get("annotations") or {}
    labels = spec["template"]["metadata"].get("labels") or {}
    until = annotations.get(names.ANNOTATION_HOLD_UNTIL, "")
    return Workload(
        replicas=spec.get("replicas", 1),
        incarnation=_number(labels.get(names.LABEL_INCARNATION)),
        first=_number(annotations.get(names.ANNOTATION_FIRST_INCARNATION)) or 1,
        disruptions=_number(annotations.get(names.ANNOTATION_DISRUPTIONS)),
        gang_tries=_number(annotations.get(names.ANNOTATION_GANG_TRIES)),
        hold_until=until if read_time(until) is not None else "",
    )


def parse_pod(live: Document) -> Pod | None:
    """A pod's scalars; None for a pod of no run, or of no StatefulSet."""
    meta, spec, status = live["metadata"], live.get("spec") or {}, live.get("status") or {}
    labels = meta.get("labels") or {}
    owner = controller_uid(meta, "apps", "StatefulSet")
    if names.LABEL_RUN_UID not in labels or not owner:
        return None
    containers = [
        one
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
    ]
    waiting = _waiting(containers)
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    phase = status.get("phase", "Pending")
    unschedulable = phase == "Pending" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        owner=intern(owner),
        run=labels.get(names.LABEL_RUN, ""),
        run_uid=labels[names.LABEL_RUN_UID],
        role=labels.get(names.LABEL_ROLE, ""),
        attempt=_number(labels.get(names.LABEL_ATTEMPT)),
        incarnation=_number(labels.get(names.LABEL_INCARNATION)),
        created=parse_time(meta["creationTimestamp"]),
        phase=phase,
        ready=conditions.get("Ready", {}).get("status") == "True",
        node=spec.get("nodeName", ""),
        restarts=sum(one.get("restartCount", 0) for one in containers),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", "")[:500],
        unschedulable=scheduled.get("message", "")[:500] if unschedulable else "",
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
        deleting="deletionTimestamp" in meta,
        ended=_ended(containers),
    )


def _waiting(containers: list[Document]) -> Document:
    for one in containers:
        if waiting := (one.get("state") or {}).get("waiting"):
            return waiting
    return {}


def _ended(containers: list[Document]) -> Ended | None:
    """Of several that ended, one that does the role's work: what stands beside it says less."""
    for one in sorted(containers, key=lambda one: one["name"] not in WORK_CONTAINERS):
        state = (one.get("state") or {}).get("terminated") or (one.get("lastState") or {}).get(
            "terminated"
        )
        if state and (one["name"] in WORK_CONTAINERS or state.get("exitCode")):
            return Ended(
                container=one["name"],
                exit_code=state.get("exitCode", 0),
                reason=state.get("reason", ""),
                message=(state.get("message") or "")[-1000:],
            )
    return None


def parse_node(live: Document) -> Node:
    """A node's scalars."""
    conditions = (live.get("status") or {}).get("conditions") or ()
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    unready = ready is not None and ready["status"] != "True"
    taints = (live.get("spec") or {}).get("taints") or ()
    return Node(
        name=live["metadata"]["name"],
        version=int(live["metadata"]["resourceVersion"]),
        uid=live["metadata"]["uid"],
        unready_since=parse_time(ready["lastTransitionTime"]) if ready and unready else None,
        out_of_service=any(taint["key"] == NODE_OUT_OF_SERVICE for taint in taints),
    )


def _number(text: Any) -> int:
    """A count as we write it. 0 for any other text: who may edit one namespace may put it on an object there."""
    short = isinstance(text, str) and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if short and text.isascii() and text.isdigit() else 0
