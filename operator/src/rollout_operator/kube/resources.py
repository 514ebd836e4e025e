"""The kinds that the operator reads and writes, and their paths at the API server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollout_api import GROUP, VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind as the API server serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Path of the collection, or of one object; no namespace means all of them."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{tail}"


def _core(plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group="", version="v1", plural=plural, kind=kind, namespaced=namespaced)


def _in(
    group: str, plural: str, kind: str, *, namespaced: bool = True, version: str = "v1"
) -> Resource:
    return Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)


def _own(plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group=GROUP, version=VERSION, plural=plural, kind=kind, namespaced=namespaced)


RUNS = _own("rolloutruns", "RolloutRun")
SNAPSHOTS = _own("rolloutsnapshots", "RolloutSnapshot")
ENDPOINTS = _own("rolloutendpoints", "RolloutEndpoint")
SWEEPS = _own("rolloutsweeps", "RolloutSweep")
RUNTIMES = _own("rolloutruntimes", "RolloutRuntime")
CLUSTER_RUNTIMES = _own("clusterrolloutruntimes", "ClusterRolloutRuntime", namespaced=False)

CONFIG_MAPS = _core("configmaps", "ConfigMap")
SECRETS = _core("secrets", "Secret")
SERVICES = _core("services", "Service")
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount")
PODS = _core("pods", "Pod")
NAMESPACES = _core("namespaces", "Namespace", namespaced=False)
NODES = _core("nodes", "Node", namespaced=False)
CLAIMS = _core("persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = _in("batch", "jobs", "Job")
STATEFUL_SETS = _in("apps", "statefulsets", "StatefulSet")
DEPLOYMENTS = _in("apps", "deployments", "Deployment")
ROLE_BINDINGS = _in("rbac.authorization.k8s.io", "rolebindings", "RoleBinding")
NETWORK_POLICIES = _in("networking.k8s.io", "networkpolicies", "NetworkPolicy")
DISRUPTION_BUDGETS = _in("policy", "poddisruptionbudgets", "PodDisruptionBudget")
POD_MONITORS = _in("monitoring.coreos.com", "podmonitors", "PodMonitor")
AUTOSCALERS = _in(
    "autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", version="v2"
)
SCALED_OBJECTS = _in("keda.sh", "scaledobjects", "ScaledObject", version="v1alpha1")
HTTP_ROUTES = _in("gateway.networking.k8s.io", "httproutes", "HTTPRoute")
STORAGE_CLASSES = _in("storage.k8s.io", "storageclasses", "StorageClass", namespaced=False)
CSI_DRIVERS = _in("storage.k8s.io", "csidrivers", "CSIDriver", namespaced=False)
LEASES = _in("coordination.k8s.io", "leases", "Lease")
EVENTS = _in("events.k8s.io", "events", "Event")

OWN_KINDS = (RUNS, SNAPSHOTS, ENDPOINTS, SWEEPS, RUNTIMES, CLUSTER_RUNTIMES)
WATCHED_CHILDREN = (
    CONFIG_MAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    DEPLOYMENTS,
    ROLE_BINDINGS,
    NETWORK_POLICIES,
    DISRUPTION_BUDGETS,
    AUTOSCALERS,
)
"""Children that the small reader follows. Secrets are fetched by name and never listed."""
OPTIONAL_CHILDREN = (SCALED_OBJECTS, HTTP_ROUTES)
"""Children of endpoints that a cluster may not serve: followed while it does."""

_BY_KIND = {
    one.kind: one
    for one in (
        *OWN_KINDS,
        *WATCHED_CHILDREN,
        *OPTIONAL_CHILDREN,
        *(SECRETS, PODS, NODES, POD_MONITORS, JOBS),
    )
}


def own_paths(namespaces: Sequence[str]) -> Iterator[str]:
    """The collections of our kinds that are watched: in these namespaces, or (none named) in all."""
    for resource in OWN_KINDS:
        if resource.namespaced:
            yield from (resource.path(one) for one in namespaces or (None,))
        elif not namespaces:
            yield resource.path()


def resource_of(kind: str) -> Resource:
    """The resource of a kind we write. Raises KeyError for any other."""
    return _BY_KIND[kind]
