"""Every (group, resource, verb) that the operator uses, and why. The chart's roles are made from this.

``watched``: in every namespace with runs (a ClusterRole, or a Role each). ``cluster``: only where the
operator serves the whole cluster; ``namespaced``: only where it serves a list of namespaces. ``own``: in the
operator's namespace. ``coordinator`` and ``sandboxes`` are not the operator's: they are all that the coordinators of
runs may do, the latter only those of runs with sandbox pods. ``console`` is what the console reads where runs are, and
``reviews`` how it asks who its viewers are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_operator.signing import SECRET_NAME, SNAPSHOT_SECRET

Scope = Literal[
    "watched", "cluster", "namespaced", "own", "coordinator", "sandboxes", "console", "reviews"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of a role. ``names``: only objects of these names, or ``ACCOUNT``, ``COORDINATOR``."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    scope: Scope
    why: str
    names: tuple[str, ...] = ()


ACCOUNT = "$(account)"
"""The operator's own account, whose name the chart knows when it is rendered."""
COORDINATOR = "$(coordinator)"
"""The role of coordinators, whose name the chart knows when it is rendered."""
SANDBOXES = f"{COORDINATOR}-sandboxes"
"""The role of coordinators whose runs have sandbox pods."""
_CHILD = ("get", "list", "watch", "create", "patch", "delete")
_READ = ("list", "watch")

RULES: tuple[Rule, ...] = (
    Rule(
        group="rollout.dev",
        resources=(
            "rolloutruns",
            "rolloutsnapshots",
            "rolloutendpoints",
            "rolloutsweeps",
            "rolloutruntimes",
        ),
        verbs=_READ,
        scope="watched",
        why="the desired state",
    ),
    Rule(
        group="rollout.dev",
        resources=(
            "rolloutruns/status",
            "rolloutsnapshots/status",
            "rolloutendpoints/status",
            "rolloutsweeps/status",
            "rolloutruntimes/status",
        ),
        verbs=("patch",),
        scope="watched",
        why="what is",
    ),
    Rule(
        group="rollout.dev",
        resources=("rolloutruns",),
        verbs=("delete",),
        scope="watched",
        why="finished runs that ask for it: limits.ttlAction",
    ),
    Rule(
        group="rollout.dev",
        resources=("rolloutruns",),
        verbs=("create", "patch"),
        scope="watched",
        why="runs of sweeps, and the suspension of those that lose; an admission policy holds it to that",
    ),
    Rule(
        group="rollout.dev",
        resources=("rolloutsnapshots",),
        verbs=("patch",),
        scope="watched",
        why="the finalizer of snapshots whose bytes go with them: deletionPolicy Delete",
    ),
    Rule(
        group="rollout.dev",
        resources=("rolloutsnapshots",),
        verbs=("create", "delete"),
        scope="watched",
        why="snapshots that a run's schedules ask for, and those that they no longer keep; those that forks of sweeps begin with",
    ),
    Rule(
        group="batch",
        resources=("jobs",),
        verbs=("get", "create"),
        scope="watched",
        why="Jobs that read a snapshot, remove the bytes of a deleted one, or measure an endpoint's candidate; each goes with its owner",
    ),
    Rule(
        group="",
        resources=("persistentvolumeclaims",),
        verbs=("get",),
        scope="watched",
        why="whether the ledger of a run that is over is kept: what it names stays",
    ),
    Rule(
        group="rollout.dev",
        resources=("rolloutruns/finalizers", "rolloutendpoints/finalizers"),
        verbs=("update",),
        scope="watched",
        why="children name the run or endpoint as their owner with blockOwnerDeletion",
    ),
    Rule(
        group="rollout.dev",
        resources=("clusterrolloutruntimes",),
        verbs=_READ,
        scope="cluster",
        why="the platform's half of runs",
    ),
    Rule(
        group="rollout.dev",
        resources=("clusterrolloutruntimes/status",),
        verbs=("patch",),
        scope="cluster",
        why="whether runs may use it",
    ),
    Rule(
        group="",
        resources=("services", "serviceaccounts", "configmaps"),
        verbs=_CHILD,
        scope="watched",
        why="children; configuration named in specs",
    ),
    Rule(
        group="",
        resources=("secrets",),
        verbs=("get", "create", "patch", "delete"),
        scope="watched",
        why="the run's certificate; whether secrets named in specs exist; never listed",
    ),
    Rule(
        group="",
        resources=("pods",),
        verbs=("list", "watch", "delete"),
        scope="watched",
        why="state of workers; group restarts; pods of lost nodes",
    ),
    Rule(
        group="apps",
        resources=("statefulsets", "deployments"),
        verbs=_CHILD,
        scope="watched",
        why="workers of runs, servers of endpoints",
    ),
    Rule(
        group="rbac.authorization.k8s.io",
        resources=("rolebindings",),
        verbs=_CHILD,
        scope="watched",
        why="a coordinator's account is bound to the role that the chart ships",
    ),
    Rule(
        group="rbac.authorization.k8s.io",
        resources=("clusterroles",),
        verbs=("bind",),
        scope="cluster",
        names=(COORDINATOR, SANDBOXES),
        why="to that role, to the one of coordinators with sandbox pods, and to no other",
    ),
    Rule(
        group="rbac.authorization.k8s.io",
        resources=("roles",),
        verbs=("bind",),
        scope="namespaced",
        names=(COORDINATOR,),
        why="to that role, which is the namespace's own here, and to no other",
    ),
    Rule(
        group="admissionregistration.k8s.io",
        resources=("validatingadmissionpolicybindings",),
        verbs=("get",),
        scope="cluster",
        names=(SANDBOXES,),
        why="whether the policy is in force that holds coordinators to sandbox pods; without it none are made",
    ),
    Rule(
        group="networking.k8s.io",
        resources=("networkpolicies",),
        verbs=_CHILD,
        scope="watched",
        why="who may reach whom",
    ),
    Rule(
        group="policy",
        resources=("poddisruptionbudgets",),
        verbs=_CHILD,
        scope="watched",
        why="how many pods may be disturbed",
    ),
    Rule(
        group="autoscaling",
        resources=("horizontalpodautoscalers",),
        verbs=_CHILD,
        scope="watched",
        why="autoscalers of endpoints: scaling.hpa",
    ),
    Rule(
        group="keda.sh",
        resources=("scaledobjects",),
        verbs=_CHILD,
        scope="watched",
        why="autoscalers of endpoints, when the kind exists: scaling.keda",
    ),
    Rule(
        group="gateway.networking.k8s.io",
        resources=("httproutes",),
        verbs=_CHILD,
        scope="watched",
        why="ways in to endpoints through Gateways, when the kind exists: route",
    ),
    Rule(
        group="monitoring.coreos.com",
        resources=("podmonitors",),
        verbs=_CHILD,
        scope="watched",
        why="where Prometheus finds coordinators, when the kind exists",
    ),
    Rule(
        group="kueue.x-k8s.io",
        resources=("workloads",),
        verbs=("list", "watch", "create", "patch", "delete"),
        scope="watched",
        why="quota of runs with a queue; its finalizer holds the quota until the pods are gone",
    ),
    Rule(
        group="kueue.x-k8s.io",
        resources=("workloads/status",),
        verbs=("patch",),
        scope="watched",
        why="PodsReady, Finished and Requeued, as Kueue's own jobs say them",
    ),
    Rule(
        group="kueue.x-k8s.io",
        resources=("resourceflavors", "workloadpriorityclasses"),
        verbs=("get",),
        scope="cluster",
        why="where an admitted run's pods go, and which run goes first",
    ),
    Rule(
        group="scheduling.k8s.io",
        resources=("priorityclasses",),
        verbs=("get",),
        scope="cluster",
        why="the place of a run in its queue",
    ),
    Rule(
        group="events.k8s.io",
        resources=("events",),
        verbs=("create",),
        scope="watched",
        why="what happened to a run",
    ),
    Rule(
        group="",
        resources=("nodes",),
        verbs=("list", "watch"),
        scope="cluster",
        why="nodes that stopped answering",
    ),
    Rule(
        group="",
        resources=("namespaces",),
        verbs=("get",),
        scope="cluster",
        why="labels of a run's namespace, where its runtime serves namespaces by label",
    ),
    Rule(
        group="storage.k8s.io",
        resources=("storageclasses", "csidrivers"),
        verbs=("list",),
        scope="cluster",
        why="whether a ledger's volume can be had, and for one pod alone",
    ),
    Rule(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("get", "create", "update"),
        scope="own",
        why="one replica writes",
    ),
    Rule(
        group="",
        resources=("serviceaccounts/token",),
        verbs=("create",),
        scope="own",
        names=(ACCOUNT,),
        why="tokens for coordinators, of the operator's own account",
    ),
    Rule(
        group="",
        resources=("secrets",),
        verbs=("get",),
        scope="own",
        names=(SECRET_NAME, SNAPSHOT_SECRET),
        why="the keys that records and snapshots are signed with",
    ),
    Rule(
        group="",
        resources=("secrets",),
        verbs=("create",),
        scope="own",
        why="the first of each of these keys; a create knows no name",
    ),
)

COORDINATOR_RULES: tuple[Rule, ...] = (
    Rule(
        group="rollout.dev",
        resources=("rolloutruns/status",),
        verbs=("patch",),
        scope="coordinator",
        why="its progress; an admission policy holds it to that, and to its own run",
    ),
    Rule(
        group="",
        resources=("pods",),
        verbs=("create", "list", "delete"),
        scope="sandboxes",
        why="sandbox pods for what the policy writes; an admission policy holds it to such, and to its own",
    ),
)
"""All that the coordinators of runs may do; the operator binds it and cannot change it."""

CONSOLE_RULES: tuple[Rule, ...] = (
    Rule(
        group="rollout.dev",
        resources=("rolloutruns", "rolloutendpoints", "rolloutsnapshots", "rolloutsweeps"),
        verbs=("get", "list"),
        scope="console",
        why="runs, endpoints, snapshots and sweeps, for those who may see them",
    ),
    Rule(
        group="",
        resources=("pods", "events"),
        verbs=("list",),
        scope="console",
        why="where a run's processes are, and what happened to them",
    ),
    Rule(
        group="authentication.k8s.io",
        resources=("tokenreviews",),
        verbs=("create",),
        scope="reviews",
        why="who a viewer is",
    ),
    Rule(
        group="authorization.k8s.io",
        resources=("subjectaccessreviews",),
        verbs=("create",),
        scope="reviews",
        why="what a viewer may see",
    ),
)
"""All that the console's own account may do: it reads no Secret and changes nothing."""
