"""Everything that rendering a run attempt takes; nothing is looked up later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollout_api import names
from rollout_api.v1alpha1.pods.roles import Engine
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import AcceleratorClass, RoleTemplate, RuntimeSpec
from rollout_api.worker import RestoreOrder
from rollout_operator.run.render.contract import CACHE_FOLDER

Manifest = dict[str, Any]

ROWS = "rows"
"""The container in the coordinator's pod that runs the author's data code."""
PLUGIN = "plugin-"
"""Begins the name of a container that is a plugin, in an actor's pod."""
MODELS = "models"
"""The init container that fills the model cache."""
CACHE_VOLUME = "cache"
"""The volume of the model cache."""

TEMPLATE_VERSION = "9"
"""Raised with every change of what is rendered; live run attempts keep what they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReference:
    """The role that coordinators are bound to: made with the installation, never by the operator."""

    kind: Literal["ClusterRole", "Role"] = "ClusterRole"
    name: str = "rollout-coordinator"

    def for_sandboxes(self) -> RoleReference:
        """The one beside it, which coordinators of runs with sandbox pods are bound to as well."""
        return replace(self, name=f"{self.name}-sandboxes")

    def document(self) -> Manifest:
        """As a RoleBinding has it."""
        return {"apiGroup": "rbac.authorization.k8s.io", "kind": self.kind, "name": self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The operator's own facts: defaults for images, who it is, and how tokens are checked.

    ``sandboxes``: the installation has the role, and the admission policy, for coordinators that make sandbox pods.
    """

    worker_image: str
    vllm_image: str
    issuer: str = "https://kubernetes.default.svc.cluster.local"
    operator_namespace: str = "rollout-system"
    operator_account: str = "rollout-operator"
    pod_monitors: bool = False
    sandboxes: bool = False
    coordinator_role: RoleReference = field(default_factory=RoleReference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a queue wants the pods of one role, beside what the run and its runtime say."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One run attempt. ``spec`` has its presets, engine and storage resolved.

    ``restore`` is what the run begins with, instead of its model. ``sources`` are claims of the runs that it starts from, where their models lie in no bucket.
    """

    name: str
    namespace: str
    uid: str
    attempt: int
    generation: int = 0
    settled: str = ""
    spec: RolloutRunSpec
    runtime: RuntimeSpec
    platform: Platform
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"
    progress_seconds: float = 10.0
    sources: tuple[str, ...] = ()
    restore: RestoreOrder | None = None
    placements: Mapping[str, Placement] = field(default_factory=dict)

    @property
    def uses_sqlite(self) -> bool:
        """Whether the coordinator needs a volume."""
        storage = self.spec.storage
        return storage is None or storage.ledger is None or storage.ledger.postgres is None

    @property
    def engine(self) -> Engine:
        """The engine of the actors; resolved specs always have one."""
        assert self.spec.actors.engine is not None
        return self.spec.actors.engine

    def has_server(self, role: names.Role) -> bool:
        """Whether a pod of this role has the engine's server beside it."""
        return role == "actor" and self.engine.capabilities.server

    @property
    def cache_root(self) -> str:
        """The folder of the model cache that is this run's to read: in a node's folder its namespace's."""
        cache = self.runtime.model_cache
        own = cache is not None and cache.host_path is not None
        return f"{CACHE_FOLDER}/{self.namespace}" if own else CACHE_FOLDER

    def reads_models(self, role: names.Role) -> bool:
        """Whether the role's container, which runs the author's code, sees a cache of several runs: it only reads."""
        cache = self.runtime.model_cache
        shared = cache is not None and cache.empty_dir is None
        return shared and role in ("learner", "actor")

    def template(self, role: names.Role) -> RoleTemplate:
        """What the platform sets on a role's pods."""
        roles = self.runtime.roles
        chosen = None
        if roles is not None:
            chosen = {"coordinator": roles.coordinator, "learner": roles.learner}.get(
                role, roles.actors
            )
        return chosen or RoleTemplate()

    def accelerator(self, role: names.Role) -> tuple[AcceleratorClass, int] | None:
        """The device class and number of devices of a role's pods; None without devices."""
        wanted = {"learner": self.spec.learner.accelerator, "actor": self.spec.actors.accelerator}
        if (accelerator := wanted.get(role)) is None:
            return None
        found = next(
            c for c in self.runtime.accelerator_classes if c.name == accelerator.class_name
        )
        vllm = self.engine.vllm
        needed = (
            self.spec.learner.processes_per_node
            if role == "learner"
            else (vllm.tensor_parallel if vllm is not None else 1)
        )
        return found, accelerator.count or needed

    def placement(self, role: names.Role) -> Placement:
        """Where the run's queue wants a role's pods; nothing without a queue."""
        return self.placements.get(role) or Placement()

    def account(self, role: names.Role) -> str:
        """Name of a role's service account."""
        return self.template(role).service_account_name or names.service_account_name(
            self.name, role
        )

    def meta(self, name: str, role: names.Role | None = None) -> Manifest:
        """Metadata of a child: owned by the run, and so gone with it."""
        labels = {
            names.LABEL_NAME: "rollout",
            names.LABEL_INSTANCE: self.name,
            names.LABEL_PART_OF: "rollout",
            names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
            names.LABEL_RUN: self.name,
            names.LABEL_RUN_UID: self.uid,
            names.LABEL_ATTEMPT: str(self.attempt),
        }
        if role is not None:
            labels |= {names.LABEL_COMPONENT: role, names.LABEL_ROLE: role}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": labels,
            "annotations": {names.ANNOTATION_TEMPLATE_VERSION: TEMPLATE_VERSION},
            "ownerReferences": [owner_reference(self.name, self.uid)],
        }


def plain_meta(run: str, namespace: str, uid: str, name: str) -> Manifest:
    """Metadata of a child that is no run attempt's."""
    labels = {
        names.LABEL_NAME: "rollout",
        names.LABEL_INSTANCE: run,
        names.LABEL_PART_OF: "rollout",
        names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
        names.LABEL_RUN: run,
        names.LABEL_RUN_UID: uid,
    }
    return {
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(run, uid)],
    }


def owner_reference(name: str, uid: str) -> Manifest:
    """The run as the controller of a child."""
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
