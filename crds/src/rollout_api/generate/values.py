"""The values of the chart ``rollout``, as models: values.yaml, its schema and the README come from them.

Nothing here is read at run time. What an API field or a setting of the operator says is passed through under its name.
"""

from typing import Annotated, Literal

from pydantic import Field

from rollout_api.base import ApiModel, Label, ObjectName, many
from rollout_api.generate.pod_values import (
    AccountValues,
    Annotations,
    BudgetValues,
    IdentityValues,
    ImageValues,
    Labels,
    LogValues,
    OptionalName,
    PodValues,
    Reference,
    WorkerImages,
    requests,
)
from rollout_api.v1alpha1.common import NameRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.allowed import AllowedNamespaces
from rollout_api.v1alpha1.pods.pods import (
    LabelSelector,
    Quantity,
    Resources,
)
from rollout_api.v1alpha1.runtime import Image, RuntimeSpec


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
    resources: Resources = Field(default_factory=lambda: requests("100m", "192Mi", "512Mi"))
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
    resources: Resources = Field(default_factory=lambda: requests("10m", "64Mi", "128Mi"))
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
    resources: Resources = Field(default_factory=lambda: requests("50m", "96Mi", "192Mi"))
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


class ConsoleValues(PodValues):
    """The console: runs in a browser, for whoever shows a token of the cluster, as far as that person may read them. One pod."""

    enabled: bool = False
    """Install it. In namespaced mode an administrator binds its account to the ClusterRole `system:auth-delegator`."""
    tls_secret_name: OptionalName = ""
    """Secret of its namespace with `tls.crt` and `tls.key`, of cert-manager or your own, for the names that people open.
    Needed: people's tokens travel to it."""
    image: Reference = ""
    """Image with the command `rollout`. Empty: `images.worker`."""
    clients: LabelSelector = Field(default_factory=LabelSelector)
    """Namespaces from which it may be reached, such as that of an ingress controller. Empty: all."""
    resources: Resources = Field(default_factory=lambda: requests("50m", "192Mi", "512Mi"))
    """Requests and limits."""


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
    console: ConsoleValues = Field(default_factory=ConsoleValues)
    """The console for a cluster's runs."""
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
