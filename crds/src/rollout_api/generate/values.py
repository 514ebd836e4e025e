"""The values of the chart ``rollout``, as models: values.yaml, its schema and the README come from them.

Nothing here is read at run time. What an API field or a setting of the operator says is passed through under its name.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Label, ObjectName, OneOf, many
from rollout_api.v1alpha1.common import EnvVars, NameRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.allowed import AllowedNamespaces
from rollout_api.v1alpha1.pods.pods import (
    Affinity,
    AnnotationValue,
    LabelKey,
    LabelSelector,
    LabelValue,
    Quantity,
    Resources,
    Toleration,
)
from rollout_api.v1alpha1.runtime import Image, RuntimeSpec, SecretVolume

Reference = Annotated[str, StringConstraints(max_length=512)]
OptionalName = Annotated[str, StringConstraints(max_length=253)]
Labels = dict[LabelKey, LabelValue]
Annotations = dict[LabelKey, AnnotationValue]


def _requests(cpu: str, memory: str, most: str) -> Resources:
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


class OperatorValues(PodValues):
    """The reconciler."""

    replicas: int = Field(default=2, ge=0, le=5)
    """Pods; one reconciles (a Lease says which), the others wait with a warm cache."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Objects reconciled at once."""
    runs_per_namespace: int = Field(default=50, ge=0, le=10_000)
    """Runs of a namespace that are started at once; further ones wait, the oldest first. 0: no bound."""
    resync_seconds: int = Field(default=3600, ge=30, le=86_400)
    """Seconds after which every object is looked at again though nothing happened."""
    resources: Resources = Field(default_factory=lambda: _requests("100m", "192Mi", "512Mi"))
    """Requests and limits; memory grows by about 25 kB a run."""
    pod_disruption_budget: BudgetValues = Field(default_factory=BudgetValues)
    """Its PodDisruptionBudget."""


class IssuerRef(ApiModel):
    """A cert-manager issuer."""

    name: OptionalName = ""
    """Its name; an authority that outlives its certificates, not a self-signed one. Empty: the chart makes one."""
    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"
    """Its kind."""


class CertificateValues(ApiModel):
    """Who issues the webhook's certificate and writes `caBundle`."""

    mode: Literal["SelfManaged", "CertManager"] = "SelfManaged"
    """`SelfManaged`: a small process of ours, allowed to write one Secret and one caBundle.
    `CertManager`: cert-manager and its CA injector."""
    issuer_ref: IssuerRef = Field(default_factory=IssuerRef)
    """Issuer for mode CertManager."""
    resources: Resources = Field(default_factory=lambda: _requests("10m", "64Mi", "128Mi"))
    """Requests and limits of our process."""
    service_account: AccountValues = Field(default_factory=AccountValues)
    """Service account of our process."""


class WebhookValues(PodValues):
    """The validating webhook. Without it the operator still refuses what it would: as a condition."""

    enabled: bool = True
    """Install the webhook. Not in namespaced mode: its configuration belongs to the cluster."""
    replicas: int = Field(default=2, ge=1, le=16)
    """Pods; all of them answer."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """What the API server does with a new or changed RolloutRun when nobody answers."""
    timeout_seconds: int = Field(default=5, ge=1, le=5)
    """How long the API server waits."""
    namespace_selector: LabelSelector = Field(default_factory=LabelSelector)
    """Namespaces whose runs are reviewed. Empty: all."""
    port: int = Field(default=9443, ge=1024, le=65_535)
    """Port that its pods listen on, such as one that a firewall of the control plane lets through."""
    host_network: bool = False
    """For API servers that reach node addresses only, such as a control plane with another network."""
    resources: Resources = Field(default_factory=lambda: _requests("50m", "96Mi", "192Mi"))
    """Requests and limits."""
    pod_disruption_budget: BudgetValues = Field(default_factory=BudgetValues)
    """Its PodDisruptionBudget."""
    certificates: CertificateValues = Field(default_factory=CertificateValues)
    """Its certificate."""


class NetworkPolicyValues(ApiModel):
    """NetworkPolicies of our pods; those of runs are made with the runs."""

    enabled: bool = True
    """Make the NetworkPolicies."""
    api_server_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = many(
        8, default=(443, 6443)
    )
    """Ports of the API server, as pods reach it."""
    api_server_addresses: tuple[Reference, ...] = many(64)
    """Addresses (CIDR) from which the API server calls the webhook: its nodes, or the network of a managed
    control plane. Empty: any, since they differ from cloud to cloud; the webhook bounds what one address may ask."""
    scrapers: LabelSelector = Field(default_factory=LabelSelector)
    """Namespaces from which metrics may be read. Empty: all."""


class PodsMayValues(ApiModel):
    """What pods of runs may have beyond the usual, where a runtime gives it: the operator can make no others."""

    host_network: bool = False
    """The node's network, as `acceleratorClasses[].network.hostNetwork`: no NetworkPolicy holds for such pods."""
    host_paths: tuple[FilePath, ...] = many(32)
    """Folders of nodes, as in `modelCache.hostPath` and `roles.<role>.volumes`; each exactly as it is there."""
    service_accounts: tuple[ObjectName, ...] = many(32)
    """Service accounts, as in `roles.<role>.serviceAccountName`."""


class SandboxesMayValues(ApiModel):
    """What the sandbox pods of runs may be, where a runtime gives it: coordinators can make no others."""

    images: tuple[Image, ...] = many(64)
    """Repositories of images, as in `sandbox.image`, without tag and digest; the chart's `images.worker` is one."""
    runtime_class_names: tuple[ObjectName, ...] = many(16)
    """RuntimeClasses, as in `sandbox.runtimeClassName`. Pods without one have users of their own (`hostUsers: false`)."""
    memory_max: Quantity = "8Gi"
    """Most memory of a pod."""
    cpu_max: Quantity = "4"
    """Most processors of one."""
    seconds_max: int = Field(default=172_800, ge=120, le=604_800)
    """Longest life of a pod: twice what `sandbox.lifetimeSeconds` may be."""


class AdmissionPolicyValues(ApiModel):
    """ValidatingAdmissionPolicies, which the API server keeps whatever our processes do."""

    enabled: bool = True
    """Install the policies. Not in namespaced mode, where an administrator does."""
    pods_may: PodsMayValues = Field(default_factory=PodsMayValues)
    """What runtimes give the pods of runs beyond the usual."""
    sandboxes: SandboxesMayValues = Field(default_factory=SandboxesMayValues)
    """What the sandbox pods of runs may be."""


class MonitorValues(ApiModel):
    """A ServiceMonitor for the Prometheus operator."""

    enabled: bool = False
    """Make it; its kind must be installed."""
    interval_seconds: int = Field(default=30, ge=1, le=3600)
    """Seconds between scrapes."""
    labels: Labels = Field(default_factory=dict, max_length=16)
    """Labels by which Prometheus finds it."""


class AlertValues(ApiModel):
    """Alerts on the operator's metrics, as a PrometheusRule."""

    enabled: bool = False
    """Make it; its kind must be installed."""
    labels: Labels = Field(default_factory=dict, max_length=16)
    """Labels by which Prometheus finds it."""


class DashboardValues(ApiModel):
    """Grafana dashboards as a ConfigMap, for Grafana's sidecar."""

    enabled: bool = False
    """Make the ConfigMap."""
    labels: Labels = Field(default_factory=lambda: {"grafana_dashboard": "1"}, max_length=16)
    """Labels by which the sidecar finds it."""
    annotations: Annotations = Field(default_factory=dict, max_length=16)
    """Annotations, such as the sidecar's folder."""


class RuntimeValues(ApiModel):
    """The runtime of runs that name none."""

    create: bool = True
    """Make it: ClusterRolloutRuntime, in namespaced mode one RolloutRuntime per namespace."""
    name: ObjectName = "default"
    """Its name; runs look for `default`."""
    allowed_namespaces: AllowedNamespaces = Field(
        default_factory=lambda: AllowedNamespaces.model_validate({"from": "All"})
    )
    """Namespaces whose runs may use it; not in namespaced mode, where each has one of its own."""
    spec: RuntimeSpec = Field(default_factory=RuntimeSpec)
    """What the platform provides: every field of the API's RuntimeSpec."""


class Switch(ApiModel):
    """Something that is installed or not."""

    enabled: bool = True
    """Install it. Not in namespaced mode, where an administrator does."""


class DefinitionValues(ApiModel):
    """The CustomResourceDefinitions. The chart `rollout-crds` holds the same, for those who deploy them apart."""

    enabled: bool = False
    """Install them with this chart, instead of the chart `rollout-crds`. The default runtime is made by the next upgrade."""
    keep: bool = True
    """Leave them, and with them every run, in place when the chart is uninstalled."""


class RbacValues(ApiModel):
    """Roles and bindings."""

    create: bool = True
    """Make those that the processes need."""
    user_roles: bool = True
    """Make the ClusterRoles `<release>-viewer` and `<release>-editor`, aggregated to view and edit."""


class ChartValues(ApiModel):
    """Values of the chart `rollout`."""

    name_override: OptionalName = ""
    """Name in labels. Empty: the chart's."""
    fullname_override: OptionalName = ""
    """Prefix of every object's name. Empty: made from the release."""
    common_labels: Labels = Field(default_factory=dict, max_length=32)
    """Labels added to every object."""
    namespaces: tuple[Label, ...] = many(64)
    """Namespaced mode: the operator looks at these namespaces only, with Roles and no ClusterRole. Empty:
    the whole cluster."""
    crds: DefinitionValues = Field(default_factory=DefinitionValues)
    """The kinds of rollout.dev."""
    image: ImageValues = Field(default_factory=ImageValues)
    """Image of our own pods."""
    images: WorkerImages = Field(default_factory=WorkerImages)
    """Images of runs."""
    log: LogValues = Field(default_factory=LogValues)
    """What our own processes log."""
    identity: IdentityValues = Field(default_factory=IdentityValues)
    """Which user our own processes are."""
    image_pull_secrets: tuple[NameRef, ...] = many(16, key="name")
    """Secrets for the registry, for our own pods."""
    operator: OperatorValues = Field(default_factory=OperatorValues)
    """The reconciler."""
    webhook: WebhookValues = Field(default_factory=WebhookValues)
    """The validating webhook."""
    admission_policy: AdmissionPolicyValues = Field(default_factory=AdmissionPolicyValues)
    """ValidatingAdmissionPolicies that hold a run's coordinator to `status.progress` of its own run, and the operator to
    what runs are made of."""
    flow_schema: Switch = Field(default_factory=Switch)
    """FlowSchema that keeps the operator's Lease alive on a crowded API server."""
    rbac: RbacValues = Field(default_factory=RbacValues)
    """Roles and bindings."""
    network_policy: NetworkPolicyValues = Field(default_factory=NetworkPolicyValues)
    """Who may talk to our pods, and whom they may talk to."""
    service_monitor: MonitorValues = Field(default_factory=MonitorValues)
    """Metrics for the Prometheus operator."""
    prometheus_rule: AlertValues = Field(default_factory=AlertValues)
    """Alerts for the Prometheus operator."""
    dashboards: DashboardValues = Field(default_factory=DashboardValues)
    """Dashboards for Grafana."""
    runtime: RuntimeValues = Field(default_factory=RuntimeValues)
    """The default runtime."""
    tmp_size: Quantity = "16Mi"
    """Size of the pods' /tmp, the only place they may write to."""
