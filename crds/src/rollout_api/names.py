"""One place for names: labels, annotations, field managers, and what children are called.

Lengths: a run's name has at most 40 characters, so that the longest child (``-coordinator``) leaves
the 11 that a StatefulSet adds for its revision label within 63.
"""

from hashlib import sha256
from typing import Literal

DOMAIN = "rollout.dev"

LABEL_RUN = f"{DOMAIN}/run"
"""Name of the run that an object belongs to."""
LABEL_RUN_UID = f"{DOMAIN}/run-uid"
"""UID of that run: a namesake made later does not match."""
LABEL_ROLE = f"{DOMAIN}/role"
"""``coordinator``, ``learner`` or ``actor``."""
LABEL_ATTEMPT = f"{DOMAIN}/attempt"
"""Run attempt that a child was rendered for."""
LABEL_INCARNATION = f"{DOMAIN}/incarnation"
"""Group start of the learner within an attempt."""
LABEL_SANDBOX_OF = f"{DOMAIN}/sandbox-of"
"""UID of the run whose policy writes what runs in a pod. Such a pod has no other label of a run: it is no worker."""
LABEL_ENDPOINT = f"{DOMAIN}/endpoint"
"""Name of the endpoint that an object belongs to."""
LABEL_ENDPOINT_UID = f"{DOMAIN}/endpoint-uid"
"""UID of that endpoint: a namesake made later does not match."""
LABEL_REVISION = f"{DOMAIN}/revision"
"""Revision of an endpoint that a server is of, and that its Service sends requests to."""
LABEL_SWEEP = f"{DOMAIN}/sweep"
"""Name of the sweep that a run is of."""
LABEL_SWEEP_OUTCOME = f"{DOMAIN}/sweep-outcome"
"""``Stopped`` on a run that its sweep has suspended because it lost."""
LABEL_SWEEP_SUSPENDED = f"{DOMAIN}/sweep-suspended"
"""``true`` on a run that is suspended because its sweep is, and goes on with it."""
LABEL_SNAPSHOT_STEP = f"{DOMAIN}/step"
"""Step of a snapshot."""
LABEL_SCHEDULE = f"{DOMAIN}/schedule"
"""The entry of its run's `spec.snapshots.schedules` that a snapshot was made by, and is kept and deleted by."""

SNAPSHOT_MANIFESTS = "snapshots/manifests/"
"""Below the place of a run's objects: a manifest for each snapshot, ``<id>.json``."""

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_PART_OF = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_PRIORITY = "kueue.x-k8s.io/priority-class"

ANNOTATION_TEMPLATE_VERSION = f"{DOMAIN}/template-version"
"""Version of the templates that a child was rendered with; live attempts are not re-rendered."""
ANNOTATION_SPEC_DIGEST = f"{DOMAIN}/spec-digest"
"""Digest of the resolved spec of the attempt."""

ANNOTATION_APPLIED = f"{DOMAIN}/applied"
"""Digest of the fields that the operator set on a child: another digest of what is there is drift."""
ANNOTATION_DISRUPTIONS = f"{DOMAIN}/disruptions"
"""Group starts of the learner that cost no retry, on its StatefulSet: preemptions and drains."""
ANNOTATION_FIRST_INCARNATION = f"{DOMAIN}/first-incarnation"
"""The learner's incarnation that its run attempt began with; incarnations only grow, over attempts too."""
ANNOTATION_GANG_TRIES = f"{DOMAIN}/gang-tries"
"""How often the learner's group was not complete in time, on its StatefulSet."""
ANNOTATION_HOLD_UNTIL = f"{DOMAIN}/hold-until"
"""No pods before this time (RFC 3339), on the learner's StatefulSet: back-off of the gang."""
ANNOTATION_CHILDREN = f"{DOMAIN}/children"
"""Children of a run attempt as ``Kind/name``, on its record: one that is missing is made again."""
ANNOTATION_GENERATION = f"{DOMAIN}/generation"
"""Generation of the run that its attempt was rendered from, on the attempt's record."""
ANNOTATION_SETTLED = f"{DOMAIN}/settled"
"""Digest of the settings that a run attempt was rendered from, on its record; a run of others begins a new attempt. Not
signed: it only says when to begin anew."""
ANNOTATION_SIGNATURE = f"{DOMAIN}/signature"
"""On a record: id of a key and keyed hash of all that it says. One that does not verify is not read."""
ANNOTATION_FORMAT = f"{DOMAIN}/record-format"
"""On a record: the number of the form that it has. One without is of format 1."""
ANNOTATION_FAILED = f"{DOMAIN}/failed"
"""On the Deployment of an endpoint's revision that did not come up in time: why. It is not tried again."""
ANNOTATION_NOT_AFTER = f"{DOMAIN}/not-after"
"""End of the server certificate in a Secret, RFC 3339."""

PORT_CLIENTS, PORT_INSIDE = "api", "inside"
"""Ports of an endpoint's server: clients come to the first. Where that has TLS, the second is for probes, and for pods of the namespace."""

MANAGER_CHILDREN = "rollout-operator"
MANAGER_STATUS = "rollout-operator-status"
MANAGER_PROGRESS = "rollout-coordinator"
"""Field managers of server-side apply; ``status.progress`` is the coordinator's alone."""

FINALIZER_SNAPSHOT = f"{DOMAIN}/purge"
"""On snapshots with ``deletionPolicy: Delete`` only. Runs have no finalizer."""
FINALIZER_QUOTA = f"{DOMAIN}/quota"
"""On the Kueue Workload of a run: its quota counts until no pod of the run is left."""

Role = Literal["coordinator", "learner", "actor"]
_WORKLOADS: dict[Role, str] = {
    "coordinator": "coordinator",
    "learner": "learner",
    "actor": "actors",
}


def workload_name(run: str, role: Role) -> str:
    """Name of the role's StatefulSet and headless Service."""
    return f"{run}-{_WORKLOADS[role]}"


def service_account_name(run: str, role: Role) -> str:
    """Name of the role's service account."""
    return f"{run}-{role}"


def configuration_name(run: str, digest_hex: str) -> str:
    """Name of a run attempt's immutable configuration: named by its content."""
    return f"{run}-{digest_hex[:10]}"


def certificate_name(run: str) -> str:
    """Name of the Secret with the run's CA and server certificate."""
    return f"{run}-tls"


def keys_name(run: str) -> str:
    """Name of the ConfigMap with the public keys that service account tokens are checked by."""
    return f"{run}-keys"


def progress_name(run: str) -> str:
    """Name of the RoleBinding that lets the run's coordinator write its progress."""
    return f"{run}-progress"


def sandboxes_name(run: str) -> str:
    """Name of the RoleBinding that lets the run's coordinator make sandbox pods, and of the NetworkPolicy that closes them."""
    return f"{run}-sandboxes"


def sandbox_name(run: str, mark: str) -> str:
    """Name of a sandbox pod."""
    return f"{run}-sandbox-{mark}"


def quota_name(run: str, uid: str) -> str:
    """Name of the run's Kueue Workload; a namesake made later has another."""
    return f"rolloutrun-{run}-{sha256(uid.encode()).hexdigest()[:5]}"


def monitor_name(run: str) -> str:
    """Name of the PodMonitor."""
    return run


def ledger_claim_name(run: str) -> str:
    """Name of the coordinator's volume claim when the ledger is SQLite."""
    return f"{run}-ledger"


def snapshot_name(run: str, step: int) -> str:
    """Name of the RolloutSnapshot of a step."""
    return f"{run}-step-{step:06d}"


def scheduled_name(run: str, uid: str, schedule: str, mark: int) -> str:
    """Name of the RolloutSnapshot that a schedule of the run with this UID makes; ``mark``: minutes since 1970, or a step."""
    return f"{run}-{schedule}-{sha256(uid.encode()).hexdigest()[:5]}-{mark}"


def sweep_run_name(sweep: str, index: int) -> str:
    """Name of the run of a sweep with this place among its combinations, from 0."""
    return f"{sweep}-{index:03d}"


def sweep_fork_name(sweep: str, number: int) -> str:
    """Name of a fork of a sweep, counted from 1 in the order of the decisions, and of the snapshot that it begins with."""
    return f"{sweep}-f{number:03d}"


def purge_name(uid: str) -> str:
    """Name of the Job that removes the bytes of the RolloutSnapshot with this UID."""
    return f"purge-{uid}"


def adopt_name(uid: str) -> str:
    """Name of the Job that reads the existing snapshot of the RolloutSnapshot with this UID."""
    return f"adopt-{uid}"


def worker_labels(run: str, uid: str, role: Role) -> dict[str, str]:
    """Labels of a role's pods that never change: their selector."""
    return {LABEL_RUN: run, LABEL_RUN_UID: uid, LABEL_ROLE: role}


def server_name(endpoint: str) -> str:
    """Name of an endpoint's Service, service account, policy and budget."""
    return f"{endpoint}-server"


def candidate_name(endpoint: str) -> str:
    """Name of the Service of an endpoint's candidate, while it is measured and watched."""
    return f"{endpoint}-candidate"


def baseline_name(endpoint: str) -> str:
    """Name of the Service of the servers that a candidate is watched beside."""
    return f"{endpoint}-baseline"


def holder_name(endpoint: str) -> str:
    """Name of the Deployment that holds an endpoint's requests while it has no servers, and of its pods in the label of revisions."""
    return f"{endpoint}-holder"


def awake_name(endpoint: str) -> str:
    """Name of the Service of the servers that requests are held for."""
    return f"{endpoint}-awake"


def canary_name(endpoint: str) -> str:
    """Name of the ConfigMap that tells an endpoint's servers which sessions a candidate answers."""
    return f"{endpoint}-canary"


def live_name(endpoint: str) -> str:
    """Name of the ConfigMap that tells an endpoint's servers which weights of a run at work are the newest."""
    return f"{endpoint}-live"


def history_name(endpoint: str) -> str:
    """Name of the ConfigMap that says what an endpoint's revisions were made from."""
    return f"{endpoint}-history"


def measure_name(uid: str, digest_hex: str) -> str:
    """Name of a Job that measures or watches a revision of the RolloutEndpoint with this UID: named by what it asks of whom."""
    return f"measure-{uid}-{digest_hex[:10]}"


def revision_name(endpoint: str, digest_hex: str) -> str:
    """Name of an endpoint's revision, and of its Deployment: named by what its pods are made of."""
    return f"{endpoint}-{digest_hex[:10]}"


def server_labels(endpoint: str, uid: str) -> dict[str, str]:
    """Labels of all servers of an endpoint, which never change."""
    return {LABEL_ENDPOINT: endpoint, LABEL_ENDPOINT_UID: uid}


def common_labels(run: str, role: Role) -> dict[str, str]:
    """The recommended labels of every child."""
    return {
        LABEL_NAME: "rollout",
        LABEL_INSTANCE: run,
        LABEL_COMPONENT: role,
        LABEL_PART_OF: "rollout",
        LABEL_MANAGED_BY: MANAGER_CHILDREN,
    }
