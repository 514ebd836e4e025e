"""The kinds of Kueue that the operator reads and writes, in the version that Kueue stores."""

from __future__ import annotations

from rollout_operator.kube.resources import Resource

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"

WORKLOADS = Resource(group=GROUP, version=VERSION, plural="workloads", kind="Workload")
FLAVORS = Resource(
    group=GROUP, version=VERSION, plural="resourceflavors", kind="ResourceFlavor", namespaced=False
)
WORKLOAD_PRIORITIES = Resource(
    group=GROUP,
    version=VERSION,
    plural="workloadpriorityclasses",
    kind="WorkloadPriorityClass",
    namespaced=False,
)
POD_PRIORITIES = Resource(
    group="scheduling.k8s.io",
    version="v1",
    plural="priorityclasses",
    kind="PriorityClass",
    namespaced=False,
)
