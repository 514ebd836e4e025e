"""The Job that purges one snapshot, and the service account of its pod: as the pods of runs are, with what a coordinator has.

The pod reaches the store as its run's coordinator did: by the runtime's variables, volumes and identity. The operator has
none of these. The pod has no token of the cluster, and lives no longer than the purge may take.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api import names
from rollout_api.places import named_for, namespace_place
from rollout_api.v1alpha1.runtime import RoleTemplate, RuntimeSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import PurgeOrder, RunIdentity
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Manifest, Platform
from rollout_operator.run.render.layers import (
    field_variable,
    plain,
    secret_variable,
    tolerations_of,
    variable_of,
)
from rollout_operator.run.render.pods import (
    CONTAINED,
    SIDE_RESOURCES,
    identity_env,
    image_of,
    pull_policy_of,
    security_of,
)
from rollout_operator.run.render.volumes import Mount, claim_name, further
from rollout_operator.snapshot.purge.plan import PURGE_SECONDS, LedgerState

CONTAINER = "purge"
TRIES_MAX = 100
"""The deadline ends it long before: pauses between pods grow to six minutes."""
SCRATCH = f"{contract.HOME_FOLDER}/scratch"
_JOB_LABEL = "metadata.labels['batch.kubernetes.io/controller-uid']"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeInputs:
    """Everything that rendering takes. ``storage`` is the run's, as its spec had it."""

    name: str
    namespace: str
    uid: str
    run_name: str
    run_uid: str
    ledger: LedgerState
    storage: Storage
    runtime: RuntimeSpec
    platform: Platform

    @property
    def template(self) -> RoleTemplate:
        """What the platform sets on coordinators, which is what reaches the store."""
        roles = self.runtime.roles
        return (roles.coordinator if roles is not None else None) or RoleTemplate()

    @property
    def account(self) -> str:
        """The service account of the pod."""
        return self.template.service_account_name or names.purge_name(self.uid)

    @property
    def claim(self) -> str | None:
        """The volume of a ledger that is kept in a file."""
        kept = self.ledger == "Kept" and not in_postgres(self.storage)
        return claim_name(self.run_name, self.run_uid) if kept else None


def in_postgres(storage: Storage) -> bool:
    """Whether records lie in a database."""
    return storage.ledger is not None and storage.ledger.postgres is not None


def build_purge_account(inputs: PurgeInputs) -> Manifest | None:
    """The pod's own service account, with the cloud identity of a coordinator; None where the platform names one."""
    template = inputs.template
    if template.service_account_name is not None:
        return None
    meta = _meta(inputs)
    meta["annotations"] = {
        key: named_for(value, inputs.namespace)
        for key, value in template.service_account_annotations.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta,
        "automountServiceAccountToken": False,
    }


def build_job(inputs: PurgeInputs) -> Manifest:
    """One pod at a time, the next one when the one before it has surely ended."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(inputs),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": TRIES_MAX,
            "activeDeadlineSeconds": int(PURGE_SECONDS),
            "podReplacementPolicy": "Failed",
            "template": {"metadata": _pod_meta(inputs), "spec": _pod(inputs)},
        },
    }


def build_purge_order(inputs: PurgeInputs) -> PurgeOrder:
    """What the pod is told."""
    uri = inputs.storage.uri
    assert uri is not None
    assert inputs.ledger != "Draining"
    place = {"uri": namespace_place(uri, inputs.namespace)}
    path = f"{contract.RUN_FOLDER}/ledger.db" if inputs.claim is not None else None
    return PurgeOrder(
        snapshot=inputs.uid,
        run=RunIdentity(name=inputs.run_name, namespace=inputs.namespace, uid=inputs.run_uid),
        storage=inputs.storage.model_copy(update=place),
        ledger=inputs.ledger,
        ledger_path=path,
    )


def _meta(inputs: PurgeInputs) -> Manifest:
    owner = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutSnapshot",
        "name": inputs.name,
        "uid": inputs.uid,
        "controller": True,
    }
    return {
        "name": names.purge_name(inputs.uid),
        "namespace": inputs.namespace,
        "labels": _labels(),
        "ownerReferences": [owner],
    }


def _labels() -> dict[str, str]:
    return {
        names.LABEL_NAME: "rollout",
        names.LABEL_COMPONENT: CONTAINER,
        names.LABEL_PART_OF: "rollout",
        names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
    }


def _pod_meta(inputs: PurgeInputs) -> Manifest:
    template = inputs.template
    meta: Manifest = {"labels": {**template.labels, **_labels()}}
    if template.annotations:
        meta["annotations"] = dict(template.annotations)
    return meta


def _pod(inputs: PurgeInputs) -> Manifest:
    template, images = inputs.template, inputs.runtime.images
    mounts = _mounts(inputs)
    placed = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": tolerations_of(template.tolerations),
        "affinity": plain(template.affinity),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "imagePullSecrets": [{"name": one.name} for one in images.pull_secrets] if images else [],
    }
    return {
        "restartPolicy": "Never",
        "serviceAccountName": inputs.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_of(template),
        "containers": [_container(inputs, mounts)],
        "volumes": [mount.volume() for mount in mounts],
        **{name: value for name, value in placed.items() if value},
    }


def _container(inputs: PurgeInputs, mounts: list[Mount]) -> Manifest:
    return {
        "name": CONTAINER,
        "image": image_of(inputs.runtime, inputs.platform),
        **pull_policy_of(inputs.runtime),
        "command": contract.PURGE_COMMAND,
        "env": _env(inputs),
        "resources": plain(inputs.template.resources) or SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount() for mount in mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _env(inputs: PurgeInputs) -> list[Manifest]:
    """The platform's variables first: ours are not theirs to change."""
    order = build_purge_order(inputs).model_dump_json(by_alias=True, exclude_none=True)
    ours = [
        *identity_env(),
        {"name": "ROLLOUT_SCRATCH", "value": SCRATCH},
        field_variable(contract.PURGE_WORK, _JOB_LABEL),
        # A kubelet puts other variables in for $(NAME), and a place is a tenant's word.
        {"name": contract.PURGE_ORDER, "value": order.replace("$", "\\u0024")},
    ]
    if inputs.ledger == "Kept" and in_postgres(inputs.storage):
        ledger = inputs.storage.ledger
        assert ledger is not None
        assert ledger.postgres is not None
        secret = ledger.postgres.secret_ref
        ours.append(secret_variable(contract.DSN_VARIABLE, secret.name, secret.key))
    merged = {item.name: variable_of(item) for item in inputs.template.env}
    return list({**merged, **{one["name"]: one for one in ours}}.values())


def _mounts(inputs: PurgeInputs) -> list[Mount]:
    mounts = [
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
        *map(further, inputs.template.volumes),
    ]
    if inputs.claim is not None:
        source = {"persistentVolumeClaim": {"claimName": inputs.claim}}
        mounts.append(Mount(name="ledger", path=contract.RUN_FOLDER, source=source))
    return mounts
