"""The pod of each role: one main container, for vLLM an engine beside it, nothing privileged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rollout_api import names
from rollout_api.checks.environment.plugins import find_containers
from rollout_api.v1alpha1.runtime import RoleTemplate, RuntimeSpec
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import (
    CACHE_VOLUME,
    MODELS,
    PLUGIN,
    ROWS,
    Inputs,
    Manifest,
    Platform,
)
from rollout_operator.run.render.layers import field_variable, plain, secret_variable
from rollout_operator.run.render.pod_settings import (
    build_annotations,
    build_env,
    build_labels,
    build_placement,
    build_resources,
    build_rows_env,
    plan_grace_seconds,
)
from rollout_operator.run.render.volumes import Mount, build_mounts

USER_ID = 10001
PROBE_SECONDS = 5
SIDE_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}
NAMED = {"name": "USER", "value": "rollout"}
"""No image knows our user id, and libraries that ask for its name would end."""
CONTAINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def build_template(inputs: Inputs, role: names.Role, configuration: str) -> Manifest:
    """The pod template of a role."""
    mounts = build_mounts(inputs, role, configuration)
    annotations = build_annotations(inputs, role)
    labels = build_labels(inputs, role)
    if role == "learner":
        labels[names.LABEL_INCARNATION] = "1"
    images = inputs.runtime.images
    spec: Manifest = {
        "serviceAccountName": inputs.account(role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": build_security(inputs, role),
        "terminationGracePeriodSeconds": plan_grace_seconds(inputs, role),
        "containers": build_containers(inputs, role, mounts),
        "volumes": [mount.volume() for mount in mounts if mount.source is not None],
        **build_placement(inputs, role),
    }
    if further := _init_containers(inputs, role, mounts):
        spec["initContainers"] = further
    if images is not None and images.pull_secrets:
        spec["imagePullSecrets"] = [{"name": one.name} for one in images.pull_secrets]
    meta: Manifest = {"labels": labels}
    if annotations:
        meta["annotations"] = annotations
    return {"metadata": meta, "spec": spec}


def build_security(inputs: Inputs, role: names.Role) -> Manifest:
    """Who a role's pods are."""
    return security_of(inputs.template(role))


def security_of(template: RoleTemplate) -> Manifest:
    """Non-root, default seccomp; the platform may say otherwise."""
    said = plain(template.security_context) or {}
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **said,
    }


def build_containers(inputs: Inputs, role: names.Role, mounts: list[Mount]) -> list[Manifest]:
    """The main container, and for vLLM the engine, which then has the devices."""
    engine = inputs.has_server(role)
    main: Manifest = {
        "name": role,
        "image": worker_image(inputs),
        **_pull_policy(inputs),
        "command": contract.worker_command(role),
        "env": [*_own_env(inputs, role), *build_env(inputs, role)],
        "resources": SIDE_RESOURCES if engine else build_resources(inputs, role),
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount() for mount in mounts if mount.main],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if role == "coordinator":
        main |= _coordinator_probes(inputs)
    return [main, _engine(inputs, mounts)] if engine else [main]


def _init_containers(inputs: Inputs, role: names.Role, mounts: list[Mount]) -> list[Manifest]:
    found: list[Manifest] = []
    if inputs.has_server(role):
        found.append(_place_plugin(inputs, mounts))
    if inputs.reads_models(role):
        found.append(_place_models(inputs, role, mounts))
    if role == "coordinator" and inputs.spec.brings_data_code:
        found.append(_rows(inputs, mounts))
    if role == "actor":
        found += _plugins(inputs, mounts)
    return found


def build_sidecars(inputs: Inputs, role: names.Role) -> list[Manifest]:
    """Containers that start before the main one and run beside it."""
    return [one for one in _init_containers(inputs, role, []) if one.get("restartPolicy")]


def _place_models(inputs: Inputs, role: names.Role, mounts: list[Mount]) -> Manifest:
    """The only container of the pod that writes into the cache of several runs: it runs nobody's code but ours."""
    needed = [
        replace(one, read_only=False) if one.name == CACHE_VOLUME else one
        for one in mounts
        if one.main and not one.plugin and one.name not in ("engine", "shm", "code")
    ]
    return {
        "name": MODELS,
        "image": worker_image(inputs),
        **_pull_policy(inputs),
        "command": contract.models_command(role),
        "env": [*identity_env(), *cache_env(inputs.cache_root), *build_env(inputs, role)],
        "resources": SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount() for mount in needed],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _rows(inputs: Inputs, mounts: list[Mount]) -> Manifest:
    """Runs the author's data code for as long as the coordinator works.

    A user of its own, the author's variables, and no key, token, ledger or credential of the platform's.
    """
    user = rows_user(build_security(inputs, "coordinator"))
    allowed = inputs.runtime.allowed
    open_network = allowed is not None and allowed.data_code_network
    return {
        "name": ROWS,
        "image": worker_image(inputs),
        **_pull_policy(inputs),
        "restartPolicy": "Always",
        "command": [
            *contract.ROWS_COMMAND,
            *(contract.ROWS_NETWORK if open_network else ()),
        ],
        "env": build_rows_env(inputs),
        "resources": build_resources(inputs, "coordinator") or SIDE_RESOURCES,
        "securityContext": {
            **CONTAINED,
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
        },
        "volumeMounts": [
            mount.mount(read_only=mount.rows == "r") for mount in mounts if mount.rows
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _plugins(inputs: Inputs, mounts: list[Mount]) -> Iterator[Manifest]:
    """Each plugin serves for as long as its actor works, and is started again where it ends.

    A user of its own, and no variable, token, key, code or model of the run's: a socket, and scratch space.
    """
    first = rows_user(build_security(inputs, "actor")) + 1
    for index, plugin in enumerate(find_containers(inputs.spec)):
        assert plugin.container is not None
        yield {
            "name": f"{PLUGIN}{plugin.container.name}",
            "image": plugin.container.image,
            **_pull_policy(inputs),
            "restartPolicy": "Always",
            "env": [
                {"name": contract.PLUGIN_SOCKET, "value": plugin.container.socket},
                {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod
            ],
            "resources": plain(plugin.container.resources) or SIDE_RESOURCES,
            "securityContext": {
                **CONTAINED,
                "runAsNonRoot": True,
                "runAsUser": first + index,
                "runAsGroup": first + index,
            },
            "volumeMounts": [
                replace(one, read_only=False).mount()
                for one in mounts
                if one.plugin == plugin.container.name
            ],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }


def rows_user(security: Manifest) -> int:
    """A user and group that no other container of the pod has, and never root."""
    taken = [security.get(name) or 0 for name in ("runAsUser", "runAsGroup", "fsGroup")]
    return max(USER_ID, *taken, *security.get("supplementalGroups", ())) + 1


def worker_image(inputs: Inputs) -> str:
    """Image of coordinator, learner and actor."""
    return image_of(inputs.runtime, inputs.platform)


def image_of(runtime: RuntimeSpec, platform: Platform) -> str:
    """Image of whatever runs our code."""
    images = runtime.images
    return (images.worker if images else None) or platform.worker_image


def vllm_image(inputs: Inputs) -> str:
    """Image of the engine: the run's, the runtime's, the release's."""
    vllm, images = inputs.engine.vllm, inputs.runtime.images
    wanted = vllm.image if vllm is not None else None
    return wanted or (images.vllm if images else None) or inputs.platform.vllm_image


def _pull_policy(inputs: Inputs) -> Manifest:
    return pull_policy_of(inputs.runtime)


def pull_policy_of(runtime: RuntimeSpec) -> Manifest:
    """When an image is pulled, where the platform says so."""
    images = runtime.images
    return {"imagePullPolicy": images.pull_policy} if images and images.pull_policy else {}


def _own_env(inputs: Inputs, role: names.Role) -> list[Manifest]:
    reads = inputs.reads_models(role)
    caches = (read_only_env if reads else cache_env)(inputs.cache_root)
    variables = [*identity_env(), *caches]
    if role == "learner":
        path = f"metadata.labels['{names.LABEL_INCARNATION}']"
        variables.append(field_variable("ROLLOUT_INCARNATION", path))
    if inputs.has_server(role):
        variables.append({"name": "ROLLOUT_ENGINE_DIR", "value": contract.ENGINE_FOLDER})
    if role == "coordinator":
        variables.append(field_variable("ROLLOUT_POD_UID", "metadata.uid"))
    if role == "coordinator" and not inputs.uses_sqlite:
        storage = inputs.spec.storage
        assert storage is not None and storage.ledger is not None
        assert storage.ledger.postgres is not None
        secret = storage.ledger.postgres.secret_ref
        variables.append(secret_variable(contract.DSN_VARIABLE, secret.name, secret.key))
    return variables


def identity_env() -> list[Manifest]:
    """What every container of ours is told of its pod."""
    return [
        field_variable("ROLLOUT_POD_NAME", "metadata.name"),
        field_variable("ROLLOUT_POD_IP", "status.podIP"),
        {"name": "HOME", "value": contract.HOME_FOLDER},
        NAMED,
    ]


def cache_env(root: str) -> list[Manifest]:
    """Models are downloaded and kept below ``root``."""
    return [
        {"name": "ROLLOUT_CACHE", "value": root},
        {"name": "HF_HOME", "value": f"{root}/huggingface"},
    ]


def read_only_env(root: str) -> list[Manifest]:
    """Models are read where another container has placed them; what is downloaded or kept besides stays in the pod."""
    return [
        {"name": "ROLLOUT_CACHE", "value": root},
        {"name": "ROLLOUT_PLACED_MODELS", "value": f"{root}/huggingface/hub"},
        {"name": "ROLLOUT_SCRATCH", "value": contract.SCRATCH_FOLDER},
        {"name": "HF_HOME", "value": f"{contract.HOME_FOLDER}/huggingface"},
    ]


def _coordinator_probes(inputs: Inputs) -> Manifest:
    get = {"httpGet": {"path": contract.HEALTH_PATH, "port": "api", "scheme": "HTTPS"}}
    failures = max(3, inputs.spec.limits.pre_running_seconds // PROBE_SECONDS)
    every = {"periodSeconds": PROBE_SECONDS, "timeoutSeconds": 5}
    ports = [{"name": "api", "containerPort": contract.PORT, "protocol": "TCP"}]
    if inputs.spec.serve is not None:
        port = {"name": "train", "containerPort": contract.SERVICE_PORT, "protocol": "TCP"}
        ports.append(port)
    return {
        "ports": ports,
        "startupProbe": {**get, **every, "periodSeconds": 1, "failureThreshold": failures * 5},
        "readinessProbe": {**get, **every, "failureThreshold": 3},
        "livenessProbe": {**get, **every, "periodSeconds": 10, "failureThreshold": 6},
    }


def _place_plugin(inputs: Inputs, mounts: list[Mount]) -> Manifest:
    """Sees what the platform mounts, too: the worker's environment may lie there."""
    needed = [mount for mount in mounts if mount.name in ("engine", "tmp") or mount.further]
    return {
        "name": "place-plugin",
        "image": worker_image(inputs),
        **_pull_policy(inputs),
        "command": contract.PLACE_PLUGIN,
        "resources": SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount() for mount in needed],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _engine(inputs: Inputs, mounts: list[Mount]) -> Manifest:
    """The stock vLLM image; it listens on a Unix socket only and has no port."""
    writable = ("engine", "tmp", "shm")
    failures = max(3, inputs.spec.limits.pre_running_seconds // 10)
    return {
        "name": "engine",
        "image": vllm_image(inputs),
        **_pull_policy(inputs),
        "command": contract.ENGINE_COMMAND,
        "env": [
            {"name": "PYTHONPATH", "value": f"{contract.ENGINE_FOLDER}/plugin"},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod
            NAMED,
            *(one for one in build_env(inputs, "actor") if "value" in one),
        ],
        "resources": build_resources(inputs, "actor"),
        "securityContext": CONTAINED,
        "startupProbe": {
            "exec": {"command": contract.ENGINE_CHECK},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": failures,
        },
        "volumeMounts": [
            mount.mount(read_only=mount.name not in writable) for mount in mounts if mount.engine
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
