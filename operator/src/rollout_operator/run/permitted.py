"""What may leave for the API server as a run's object: the last look before the only exit. Pure.

It asks nothing of the code that rendered: whatever is wrong there, or in a record, an object of another
namespace, kind or name, a pod with more rights than the platform gave, or a binding to another role than
the installation's is never sent. The chart's admission policy on the operator's own user says the same once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollout_api import names
from rollout_api.names import Role
from rollout_api.v1alpha1.runtime import RoleTemplate, RuntimeSpec
from rollout_operator.errors import ChildRefused
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.render.inputs import (
    CACHE_VOLUME,
    MODELS,
    PLUGIN,
    ROWS,
    Manifest,
    RoleReference,
    owner_reference,
)

ROLES: tuple[Role, ...] = ("coordinator", "learner", "actor")
_VOLUMES = frozenset(
    {"configMap", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"}
)
_FROM_RUNTIME = ("host_path", "nfs", "csi")
_CREDENTIALS = frozenset({"csi", "projected", "secret"})
"""Volumes that hold credentials, or may."""
_RECORD_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What a runtime gives a run's pods beyond the usual. ``accounts``: service accounts by role.

    ``data_code_network`` is missing in records from before it: nothing is given.
    """

    host_paths: tuple[str, ...] = ()
    host_network: bool = False
    volumes: tuple[str, ...] = ()
    accounts: Mapping[str, str] = field(default_factory=dict)
    data_code_network: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Whose objects these are, what their pods may, and which role coordinators are bound to."""

    run: str
    namespace: str
    uid: str
    allowances: Allowances = field(default_factory=Allowances)
    coordinator_role: RoleReference = field(default_factory=RoleReference)

    @property
    def kind(self) -> str:
        """The kind of their owner."""
        return "RolloutRun"

    def check(self, manifest: Manifest) -> None:
        """Raises ChildRefused that names the object, the field, what is permitted and what was found."""
        check_permitted(manifest, self)


def build_allowances(runtime: RuntimeSpec) -> Allowances:
    """What the platform's own object says; nothing a user writes comes in."""
    templates = dict(_templates(runtime))
    volumes = [one for template in templates.values() for one in template.volumes]
    cache = runtime.model_cache
    paths = [one.host_path.path for one in volumes if one.host_path is not None]
    paths += [cache.host_path.path] if cache is not None and cache.host_path is not None else []
    classes = runtime.accelerator_classes
    accounts = {role: one.service_account_name for role, one in templates.items()}
    return Allowances(
        host_paths=tuple(sorted(set(paths))),
        host_network=any(one.network is not None and one.network.host_network for one in classes),
        volumes=tuple(
            kind
            for kind in _FROM_RUNTIME[1:]
            if any(getattr(one, kind) is not None for one in volumes)
        ),
        accounts={role: name for role, name in accounts.items() if name is not None},
        data_code_network=runtime.allowed is not None and runtime.allowed.data_code_network,
    )


def parse_allowances(document: Mapping[str, Any]) -> Allowances:
    """What a record says. Raises KeyError and TypeError for anything else."""
    return Allowances(
        host_paths=tuple(document["host_paths"]),
        host_network=document["host_network"] is True,
        volumes=tuple(document["volumes"]),
        accounts=dict(document["accounts"]),
        data_code_network=document.get("data_code_network") is True,
    )


def _templates(runtime: RuntimeSpec) -> Iterator[tuple[Role, RoleTemplate]]:
    if (roles := runtime.roles) is None:
        return
    found: tuple[tuple[Role, RoleTemplate | None], ...] = (
        ("coordinator", roles.coordinator),
        ("learner", roles.learner),
        ("actor", roles.actors),
    )
    yield from ((role, template) for role, template in found if template is not None)


# -- the look ---------------------------------------------------------------------------------------


def check_permitted(manifest: Manifest, permit: Permit) -> None:
    """Raises ChildRefused that names the object, the field, what is permitted and what was found."""
    kind, meta = manifest["kind"], manifest["metadata"]
    rule = _RULES.get(kind)
    if rule is None or manifest["apiVersion"] != rule.api_version:
        found = f"{manifest['apiVersion']} {kind}"
        raise refused_child(manifest, "kind", "one of a run's kinds", found)
    if meta.get("namespace") != permit.namespace:
        raise refused_child(manifest, "metadata.namespace", permit.namespace, meta.get("namespace"))
    if meta["name"] not in rule.names(permit) and not _is_record(manifest, permit):
        raise refused_child(manifest, "metadata.name", "a name of this run's objects", meta["name"])
    owners = meta.get("ownerReferences") or [None]
    if owners[0] != owner_reference(permit.run, permit.uid):
        raise refused_child(manifest, "metadata.ownerReferences[0]", f"run {permit.run}", owners[0])
    for name, expected, found in rule.look(manifest, permit):
        raise refused_child(manifest, name, expected, found)


def refused_child(manifest: Manifest, name: str, expected: Any, found: Any) -> ChildRefused:
    """The error of an object with a field that may not be."""
    meta = manifest["metadata"]
    what = f"{manifest['kind']} {meta.get('namespace')}/{meta['name']}"
    return ChildRefused(f"{what}: {name}: expected {expected}, got {found}; it is not sent")


Fault = tuple[str, Any, Any]
"""A field, what is permitted, what was found."""


def _is_record(manifest: Manifest, permit: Permit) -> bool:
    name = manifest["metadata"]["name"]
    head, _, digits = name.rpartition("-")
    known = len(digits) == _RECORD_DIGITS and set(digits) <= set("0123456789abcdef")
    return manifest["kind"] == "ConfigMap" and head == permit.run and known


def _nothing(_manifest: Manifest, _permit: Permit) -> Iterator[Fault]:
    return iter(())


def look_at_account(manifest: Manifest, _permit: Permit | None = None) -> Iterator[Fault]:
    """What of a service account is more than one of ours has."""
    for name in manifest.keys() - {
        "apiVersion",
        "kind",
        "metadata",
        "automountServiceAccountToken",
    }:
        yield name, "nothing", manifest[name]
    if manifest.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken", False, manifest.get("automountServiceAccountToken")


def _look_service(manifest: Manifest, _permit: Permit) -> Iterator[Fault]:
    spec = manifest["spec"]
    for name in spec.keys() - {"clusterIP", "publishNotReadyAddresses", "selector", "ports"}:
        yield f"spec.{name}", "nothing", spec[name]


def _look_binding(manifest: Manifest, permit: Permit) -> Iterator[Fault]:
    name = names.service_account_name(permit.run, "coordinator")
    wanted = permit.coordinator_role
    if manifest["metadata"]["name"] == names.sandboxes_name(permit.run):
        wanted = wanted.for_sandboxes()
    role = wanted.document()
    if manifest.get("roleRef") != role:
        yield "roleRef", role, manifest.get("roleRef")
    account = permit.allowances.accounts.get("coordinator", name)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": permit.namespace}
    if manifest.get("subjects") != [subject]:
        yield "subjects", [subject], manifest.get("subjects")


def _look_stateful_set(manifest: Manifest, permit: Permit) -> Iterator[Fault]:
    found = manifest["metadata"]["name"]
    role = next(one for one in ROLES if names.workload_name(permit.run, one) == found)
    allowed = permit.allowances
    account = allowed.accounts.get(role, names.service_account_name(permit.run, role))
    spec = manifest["spec"]["template"]["spec"]
    for name, expected, got in look_at_pod(spec, account, allowed):
        yield f"spec.template.spec.{name}", expected, got


def look_at_pod(spec: Manifest, account: str, allowed: Allowances) -> Iterator[Fault]:
    """What of a pod is more than one of this service account may have."""
    shared = ("hostPID", "hostIPC", "shareProcessNamespace")
    for name in (*shared, "ephemeralContainers", "serviceAccount"):
        if spec.get(name):
            yield name, "nothing", spec[name]
    if spec.get("hostNetwork") and not allowed.host_network:
        yield "hostNetwork", "false, as the runtime has it", True
    if spec.get("serviceAccountName") != account:
        yield "serviceAccountName", account, spec.get("serviceAccountName")
    for volume in spec.get("volumes") or ():
        yield from _look_volume(volume, allowed)
    yield from _look_containers(spec)
    yield from _look_rows(spec, allowed)
    yield from _look_plugins(spec)
    yield from _look_cache(spec)


def _look_containers(spec: Manifest) -> Iterator[Fault]:
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            for name, expected, found in _look_container(container):
                yield f"{group}[{container['name']}].{name}", expected, found


def _look_rows(spec: Manifest, allowed: Allowances) -> Iterator[Fault]:
    """The container for the author's data code: another user, and none of the pod's credentials or its ledger."""
    volumes = {one["name"]: one for one in spec.get("volumes") or ()}
    mains = {_user(one, spec) for one in spec.get("containers") or ()}
    for container in spec.get("initContainers") or ():
        if container["name"] != ROWS:
            continue
        if (user := _user(container, spec)) in {None, 0} | mains:
            yield f"initContainers[{ROWS}].securityContext.runAsUser", "one of its own", user
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"])
            if volume is None or volume.keys() & _CREDENTIALS:
                named = f"initContainers[{ROWS}].volumeMounts[{mount['name']}]"
                yield named, "no ledger, token, key or Secret", mount["mountPath"]
        if "--network" in container.get("command", ()) and not allowed.data_code_network:
            yield f"initContainers[{ROWS}].command", "no network", container["command"]


def _look_plugins(spec: Manifest) -> Iterator[Fault]:
    """The container of a plugin: an image by digest, a user of its own, and nothing of the pod but empty folders."""
    volumes = {one["name"]: one for one in spec.get("volumes") or ()}
    taken = {None, 0} | {_user(one, spec) for one in spec.get("containers") or ()}
    for container in spec.get("initContainers") or ():
        name = f"initContainers[{container['name']}]"
        if not container["name"].startswith(PLUGIN):
            continue
        if (user := _user(container, spec)) in taken:
            yield f"{name}.securityContext.runAsUser", "one of its own", user
        taken.add(user)
        for part, expected, found in _look_plugin(container, volumes):
            yield f"{name}.{part}", expected, found


def _look_plugin(container: Manifest, volumes: Mapping[str, Manifest]) -> Iterator[Fault]:
    if "@sha256:" not in container["image"]:
        yield "image", "an image by digest", container["image"]
    for mount in container.get("volumeMounts") or ():
        if volumes.get(mount["name"], {}).keys() != {"name", "emptyDir"}:
            named = f"volumeMounts[{mount['name']}]"
            yield named, "an empty folder of the pod's", mount["mountPath"]
    for one in (*(container.get("env") or ()), *(container.get("envFrom") or ())):
        if "value" not in one:
            yield "env", "plain variables", one


def _look_cache(spec: Manifest) -> Iterator[Fault]:
    """Where a container of ours fills the cache of several runs, those that run an author's code only read it."""
    if all(one["name"] != MODELS for one in spec.get("initContainers") or ()):
        return  # a record from before there was such a container
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            if container["name"] == MODELS:
                continue
            for mount in container.get("volumeMounts") or ():
                if mount["name"] == CACHE_VOLUME and mount.get("readOnly") is not True:
                    named = f"{group}[{container['name']}].volumeMounts[{CACHE_VOLUME}].readOnly"
                    yield named, True, mount.get("readOnly")


def _user(container: Manifest, spec: Manifest) -> int | None:
    """Who a container is."""
    own = (container.get("securityContext") or {}).get("runAsUser")
    return (spec.get("securityContext") or {}).get("runAsUser") if own is None else own


def _look_volume(volume: Manifest, allowed: Allowances) -> Iterator[Fault]:
    for kind in volume.keys() - {"name"} - _VOLUMES - set(allowed.volumes):
        path = volume[kind].get("path") if kind == "hostPath" else None
        if path is None or path not in allowed.host_paths:
            yield (
                f"volumes[{volume['name']}].{kind}",
                "a volume that the runtime names",
                path or kind,
            )


def _look_container(container: Manifest) -> Iterator[Fault]:
    security = container.get("securityContext") or {}
    if security.get("privileged") or security.get("allowPrivilegeEscalation") is not False:
        yield "securityContext", "no privilege and no escalation of it", security
    if (security.get("capabilities") or {}).get("add"):
        yield "securityContext.capabilities.add", "nothing", security["capabilities"]["add"]
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield "ports.hostPort", "nothing", port["hostPort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    api_version: str
    names: Callable[[Permit], tuple[str, ...]]
    look: Callable[[Manifest, Permit], Iterator[Fault]] = _nothing


def _workloads(permit: Permit) -> tuple[str, ...]:
    return tuple(names.workload_name(permit.run, role) for role in ROLES)


def _accounts(permit: Permit) -> tuple[str, ...]:
    return tuple(names.service_account_name(permit.run, role) for role in ROLES)


_RULES: Mapping[str, _Rule] = {
    "ConfigMap": _Rule(api_version="v1", names=lambda one: (names.keys_name(one.run),)),
    "Secret": _Rule(api_version="v1", names=lambda one: (names.certificate_name(one.run),)),
    "Service": _Rule(api_version="v1", names=_workloads, look=_look_service),
    "ServiceAccount": _Rule(api_version="v1", names=_accounts, look=look_at_account),
    "StatefulSet": _Rule(api_version="apps/v1", names=_workloads, look=_look_stateful_set),
    "RoleBinding": _Rule(
        api_version="rbac.authorization.k8s.io/v1",
        names=lambda one: (names.progress_name(one.run), names.sandboxes_name(one.run)),
        look=_look_binding,
    ),
    "NetworkPolicy": _Rule(
        api_version="networking.k8s.io/v1",
        names=lambda one: (*_workloads(one), names.sandboxes_name(one.run)),
    ),
    "PodDisruptionBudget": _Rule(api_version="policy/v1", names=_workloads),
    "PodMonitor": _Rule(
        api_version="monitoring.coreos.com/v1", names=lambda one: (names.monitor_name(one.run),)
    ),
    "Workload": _Rule(
        api_version=WORKLOADS.api_version,
        names=lambda one: (names.quota_name(one.run, one.uid),),
    ),
}
KINDS = frozenset(_RULES)
"""Kinds that this version makes; a record of another version may list further ones, which are left as they are."""
