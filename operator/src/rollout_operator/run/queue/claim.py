"""What a run asks its queue for: one pod set a role, as its pods will be, without what only pods need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_api import names
from rollout_api.names import LABEL_PRIORITY, Role
from rollout_operator.kube.managed_fields import digest_of
from rollout_operator.kueue.resources import GROUP, VERSION
from rollout_operator.run.render.inputs import Inputs, Manifest, owner_reference
from rollout_operator.run.render.pods import build_template
from rollout_operator.run.render.workloads import build_roles, wanted_replicas

INDEX_LABEL = "apps.kubernetes.io/pod-index"
_KEPT = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "topologySpreadConstraints",
)
_TOPOLOGY = {
    f"{GROUP}/podset-required-topology": "required",
    f"{GROUP}/podset-preferred-topology": "preferred",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """A class that orders the queue. ``value`` is what the class says."""

    kind: str
    name: str
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is asked for. ``digest`` changes when the question does."""

    queue: str
    pod_sets: tuple[Manifest, ...]
    priority: Priority | None = None

    @property
    def digest(self) -> str:
        """Of everything but the value of the priority class: a class may change under waiting runs."""
        named = [self.priority.kind, self.priority.name] if self.priority else []
        return digest_of([self.queue, list(self.pod_sets), named])


def build_claim(inputs: Inputs, queue: str, labels: Mapping[str, str]) -> Claim:
    """The question of one run attempt; the value of its priority class is not known yet."""
    pod_sets = tuple(_pod_set(inputs, role) for role in build_roles(inputs))
    return Claim(queue=queue, pod_sets=pod_sets, priority=_priority(pod_sets, labels))


def _priority(pod_sets: tuple[Manifest, ...], labels: Mapping[str, str]) -> Priority | None:
    """The run's label first, else the first class of its pods: as Kueue does for its own jobs."""
    if named := labels.get(LABEL_PRIORITY):
        return Priority(kind="WorkloadPriorityClass", name=named)
    specs = (one["template"]["spec"] for one in pod_sets)
    of_pods = next((name for spec in specs if (name := spec.get("priorityClassName"))), None)
    return Priority(kind="PriorityClass", name=of_pods) if of_pods else None


def _pod_set(inputs: Inputs, role: Role) -> Manifest:
    template = build_template(inputs, role, "")
    spec = template["spec"]
    slim: Manifest = {key: spec[key] for key in _KEPT if key in spec}
    slim["containers"] = [_slim(one) for one in spec["containers"]]
    if "initContainers" in spec:
        slim["initContainers"] = [_slim(one) for one in spec["initContainers"]]
    labels = names.common_labels(inputs.name, role)
    made: Manifest = {
        "name": role,
        "count": wanted_replicas(inputs, role),
        "template": {"metadata": {"labels": labels}, "spec": slim},
    }
    scale = inputs.spec.actors.autoscale
    if role == "actor" and scale is not None:
        made["count"] = max(made["count"], scale.max)
        if 0 < scale.min < made["count"]:
            made["minCount"] = scale.min
    if request := _topology(template["metadata"].get("annotations") or {}):
        made["topologyRequest"] = request
    return made


def _slim(container: Manifest) -> Manifest:
    """With ``restartPolicy``: what an init container asks for lasts where it is Always."""
    kept = ("name", "image", "resources", "restartPolicy")
    return {key: container[key] for key in kept if container.get(key)}


def _topology(annotations: Mapping[str, str]) -> Manifest:
    """What the annotations that Kueue documents for pods ask of a topology."""
    request: Manifest = {
        field: annotations[key] for key, field in _TOPOLOGY.items() if key in annotations
    }
    if annotations.get(f"{GROUP}/podset-unconstrained-topology") == "true":
        request["unconstrained"] = True
    return {**request, "podIndexLabel": INDEX_LABEL} if request else {}


def build_workload(name: str, namespace: str, uid: str, claim: Claim) -> Manifest:
    """The Workload: the run's, found by its UID, and kept by us until its pods are gone."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Workload",
        "metadata": {
            "name": names.quota_name(name, uid),
            "namespace": namespace,
            "labels": {
                names.LABEL_NAME: "rollout",
                names.LABEL_INSTANCE: name,
                names.LABEL_PART_OF: "rollout",
                names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
                names.LABEL_RUN: name,
                names.LABEL_RUN_UID: uid,
            },
            "annotations": {names.ANNOTATION_APPLIED: claim.digest},
            "finalizers": [names.FINALIZER_QUOTA],
            "ownerReferences": [owner_reference(name, uid)],
        },
        "spec": build_spec(claim),
    }


def build_spec(claim: Claim) -> Manifest:
    """Its spec; ``active`` is left to whoever wants to hold or evict the run."""
    spec: Manifest = {"queueName": claim.queue, "podSets": list(claim.pod_sets)}
    if (priority := claim.priority) is not None:
        group = GROUP if priority.kind == "WorkloadPriorityClass" else "scheduling.k8s.io"
        reference = {"group": group, "kind": priority.kind, "name": priority.name}
        spec |= {"priorityClassRef": reference, "priority": priority.value}
    return spec
