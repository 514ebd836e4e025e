"""The values that all pods of the chart ``rollout`` share: images, accounts, files, placement."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Label, ObjectName, OneOf, many
from rollout_api.v1alpha1.common import EnvVars, NameRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.pods import (
    Affinity,
    AnnotationValue,
    LabelKey,
    LabelSelector,
    LabelValue,
    Resources,
    Toleration,
)
from rollout_api.v1alpha1.runtime import SecretVolume

Reference = Annotated[str, StringConstraints(max_length=512)]
OptionalName = Annotated[str, StringConstraints(max_length=253)]
Labels = dict[LabelKey, LabelValue]
Annotations = dict[LabelKey, AnnotationValue]


def requests(cpu: str, memory: str, most: str) -> Resources:
    """What a container asks for, and the ``most`` memory that it may have."""
    return Resources(requests={"cpu": cpu, "memory": memory}, limits={"memory": most})


class ImageValues(ApiModel):
    """The operator's image; the webhook and the certificates' process run it too."""

    repository: Reference = "registry.invalid/rollout-operator"
    """Where you keep the image, without tag. The default is a host that nobody can own: it cannot be pulled."""
    tag: Reference = ""
    """Tag. Empty: the chart's appVersion."""
    digest: Reference = ""
    """Digest (`sha256:...`); wins over the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""


class WorkerImages(ApiModel):
    """Images of runs whose runtime names none."""

    worker: Reference = ""
    """Coordinator, actors and learner. Empty: `registry.invalid/rollout-worker`, which only nodes that hold it
    have; set it here or in a runtime's `images`."""
    vllm: Reference = ""
    """vLLM server. Empty: the version that this release was tested with."""


class AccountValues(ApiModel):
    """A service account of ours. Runs have accounts of their own: `runtime.spec.roles`."""

    create: bool = True
    """Make the service account. False: `name` exists."""
    name: OptionalName = ""
    """Its name. Empty: made from the release's."""
    annotations: Annotations = Field(default_factory=dict, max_length=16)
    """Its annotations."""


class BudgetValues(ApiModel):
    """A PodDisruptionBudget; made only for two replicas or more."""

    enabled: bool = True
    """Make a PodDisruptionBudget."""
    max_unavailable: int = Field(default=1, ge=1, le=16)
    """Pods that a drain may take at once."""


class SpreadValues(ApiModel):
    """How evenly the pods of a Deployment lie over zones or nodes (core/v1 TopologySpreadConstraint)."""

    topology_key: LabelKey
    """Node label whose values are the places, such as `topology.kubernetes.io/zone`."""
    max_skew: int = Field(default=1, ge=1, le=16)
    """Largest difference between two places."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """What happens to a pod that would make it larger."""
    label_selector: LabelSelector = Field(default_factory=LabelSelector)
    """Pods that count. Empty: those of the same Deployment."""


class LogValues(ApiModel):
    """What our own processes log; those of runs have `ROLLOUT_LOG_LEVEL` and `ROLLOUT_LOG_FORMAT` in `env`."""

    level: Literal["Debug", "Info", "Warning", "Error"] = "Info"
    """The least that is logged."""
    format: Literal["Text", "Json"] = "Text"
    """Lines for people, or one JSON object a line."""


class FilesValues(OneOf):
    """Files that are mounted into our pods, such as the authority of a proxy (with `SSL_CERT_FILE` in `env`)."""

    members: ClassVar[tuple[str, ...]] = ("config_map", "secret")

    name: Label
    """Name of the volume; not `tmp` nor `certificate`, which are ours."""
    mount_path: FilePath
    """Where its files are; always read-only."""
    config_map: NameRef | None = None
    """A ConfigMap whose keys are the files."""
    secret: SecretVolume | None = None
    """A Secret whose keys are the files."""


class IdentityValues(ApiModel):
    """Which user our processes are. All else of a security context is fixed: no root, no privileges, a root folder that is read-only."""

    run_as_user: int = Field(default=0, ge=0, le=4_294_967_295)
    """User by number. 0: the image's, or what the platform assigns (OpenShift)."""
    run_as_group: int = Field(default=0, ge=0, le=4_294_967_295)
    """Group by number. 0: the image's."""
    fs_group: int = Field(default=0, ge=0, le=4_294_967_295)
    """Group that owns what is mounted. 0: none."""


class HostAliasValues(ApiModel):
    """A line of the pods' /etc/hosts (core/v1 HostAlias)."""

    ip: Reference
    """Address that the names stand for."""
    hostnames: tuple[ObjectName, ...] = many(32, num_min=1)
    """Names that are given this address."""


class PodValues(ApiModel):
    """What all our pods share."""

    resources: Resources = Field(default_factory=Resources)
    """Requests and limits."""
    node_selector: Labels = Field(default_factory=dict, max_length=32)
    """Labels a node must have."""
    tolerations: tuple[Toleration, ...] = many(32)
    """Taints the pods accept."""
    affinity: Affinity = Field(default_factory=Affinity)
    """Where the pods go. Empty: apart from each other where possible."""
    topology_spread_constraints: tuple[SpreadValues, ...] = many(8, key="topologyKey")
    """How evenly they lie over zones; each counts the Deployment's own pods unless it says otherwise."""
    priority_class_name: OptionalName = ""
    """PriorityClass, such as `system-cluster-critical` where it is not kept for kube-system."""
    pod_labels: Labels = Field(default_factory=dict, max_length=32)
    """Labels added to the pods."""
    pod_annotations: Annotations = Field(default_factory=dict, max_length=32)
    """Annotations added to the pods."""
    env: EnvVars = many(64, key="name")
    """Further environment variables, such as those of a proxy."""
    host_aliases: tuple[HostAliasValues, ...] = many(32, key="ip")
    """Names that the cluster's DNS does not know, such as a proxy's."""
    files: tuple[FilesValues, ...] = many(16, key="name")
    """Further files, from ConfigMaps and Secrets."""
    service_account: AccountValues = Field(default_factory=AccountValues)
    """Its service account."""
