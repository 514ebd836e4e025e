"""What a user may set on pods. Volumes, accounts and security context are the runtime's."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from rollout_api.base import ApiModel, Label, ObjectName, Rule, many
from rollout_api.v1alpha1.common import EnvVars


class IsQuantity:
    """Marks a field as a Kubernetes quantity, for the generators."""


def _quantity(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    StringConstraints(
        min_length=1,
        max_length=32,
        pattern=r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$",
    ),
    IsQuantity(),
]
LabelKey = Annotated[
    str,
    StringConstraints(
        max_length=317,
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$")
]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class Resources(ApiModel):
    """Compute resources of the main container."""

    requests: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16)
    """What is reserved: cpu, memory, ephemeral-storage, hugepages."""
    limits: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16)
    """What may not be passed. Accelerators come from `accelerator`, not from here."""

    @property
    def whole_cores(self) -> int:
        """Cores that are reserved (``4``, ``2.5`` or ``3500m``), rounded down; 0 where none are named."""
        found = re.fullmatch(r"(\d+)(?:\.\d+)?(m?)", self.requests.get("cpu", ""))
        if found is None:
            return 0
        return int(found[1]) // 1000 if found[2] else int(found[1])


class Toleration(ApiModel):
    """A taint that the pods accept (core/v1 Toleration)."""

    key: LabelKey | None = None
    """Key of the taint. Unset: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How `value` is compared."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Unset: every effect."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=31_536_000)
    """How long a NoExecute taint is borne. Unset: for ever."""


class Requirement(ApiModel):
    """One condition on labels."""

    key: LabelKey
    """Key of the label that is looked at."""
    operator: Operator
    """How the label is compared with `values`."""
    values: tuple[LabelValue, ...] = many(64)
    """Values to compare with."""


class NodeSelectorTerm(ApiModel):
    """Nodes whose labels meet every expression."""

    match_expressions: tuple[Requirement, ...] = many(16)
    """Conditions on the node's labels."""


class NodeSelector(ApiModel):
    """Nodes that meet one of the terms."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = many(16, num_min=1)
    """Alternatives: a node that meets one of them will do."""


class PreferredNode(ApiModel):
    """A wish about nodes."""

    weight: int = Field(ge=1, le=100)
    """Strength of the wish."""
    preference: NodeSelectorTerm
    """Nodes that are wished for."""


class NodeAffinity(ApiModel):
    """On which nodes (core/v1 NodeAffinity)."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Pods run on nodes like these and on no others."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNode, ...] = many(16)
    """Nodes that are better than others, each with a weight."""


class LabelSelector(ApiModel):
    """Selects pods by their labels."""

    match_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels with exactly these values."""
    match_expressions: tuple[Requirement, ...] = many(16)
    """Further conditions on labels, all of which must hold."""


class PodAffinityTerm(ApiModel):
    """Near or far from these pods."""

    label_selector: LabelSelector
    """Pods that are meant, by label."""
    topology_key: LabelKey
    """Node label whose equal value means near."""


class PreferredPod(ApiModel):
    """A wish about other pods."""

    weight: int = Field(ge=1, le=100)
    """Strength of the wish."""
    pod_affinity_term: PodAffinityTerm
    """Pods that are meant, and what counts as near."""


class PodAffinity(ApiModel):
    """Near or far from which pods (core/v1 PodAffinity, PodAntiAffinity)."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = many(16)
    """Pods run only where this holds."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPod, ...] = many(16)
    """Places that are better than others, each with a weight."""


class Affinity(ApiModel):
    """Where pods go (core/v1 Affinity, without field selectors and namespaces)."""

    node_affinity: NodeAffinity | None = None
    """Nodes that pods should run on."""
    pod_affinity: PodAffinity | None = None
    """Pods to run near."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to run away from."""


class PodSettings(ApiModel):
    """What a user may set on the pods of one role."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.labels) || !self.labels.exists(key, key.startsWith('rollout.dev/'))",
            "labels of rollout.dev belong to the operator: choose another key",
            "labels",
        ),
    )

    resources: Resources | None = None
    """CPU, memory and disk. Unset: the runtime's."""
    env: EnvVars = many(128, key="name")
    """Environment variables of this role, plain or from Secrets; win over those of the run."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels a node must have, beside those of the accelerator class."""
    tolerations: tuple[Toleration, ...] = many(32)
    """Taints the pods accept, beside those of the accelerator class."""
    affinity: Affinity | None = None
    """Where the pods go."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels added to the pods; those of rollout.dev cannot be set."""
    annotations: dict[LabelKey, AnnotationValue] = Field(default_factory=dict, max_length=32)
    """Annotations added to the pods."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm. Unset: the runtime's."""


class Accelerator(ApiModel):
    """Devices of one pod."""

    class_name: Label
    """Name of an accelerator class of the runtime."""
    count: int | None = Field(default=None, ge=1, le=64)
    """Devices per pod. Unset: what the engine or the processes of a node need."""
