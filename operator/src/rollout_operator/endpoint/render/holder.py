"""Who holds an endpoint's requests while it has no servers: one pod with a gateway, without a model and without devices."""

from __future__ import annotations

from rollout_api import names
from rollout_api.serving import HOLD_VARIABLE, HoldOrder
from rollout_operator.endpoint.inputs import (
    GRACE_SECONDS,
    KEYS_FOLDER,
    LEAVE_SECONDS,
    PORT,
    SERVER,
    SERVICE_PORT,
    Manifest,
    ServerInputs,
)
from rollout_operator.endpoint.render.pods import literal
from rollout_operator.run.render import contract
from rollout_operator.run.render.layers import (
    PodLayers,
    merge_annotations,
    merge_env,
    merge_placement,
)
from rollout_operator.run.render.pods import (
    CONTAINED,
    NAMED,
    SIDE_RESOURCES,
    pull_policy_of,
    security_of,
)
from rollout_operator.run.render.volumes import Mount, further, keys_mount

COMMAND = ["python", "-m", "rollout.entrypoints.serving.holder"]


def build_holder(inputs: ServerInputs) -> Manifest:
    """Its Deployment. Its pods bear the label of revisions with its own name, so that the address can be theirs."""
    name = names.holder_name(inputs.name)
    labels = {**inputs.selector, names.LABEL_REVISION: name}
    meta: Manifest = {"labels": {**inputs.template.labels, **inputs.common_labels, **labels}}
    if annotations := merge_annotations(_layers(inputs)):
        meta["annotations"] = annotations
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": inputs.meta(name),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "selector": {"matchLabels": labels},
            "template": {"metadata": meta, "spec": _build_pod(inputs)},
        },
    }


def build_hold_order(inputs: ServerInputs) -> HoldOrder:
    """What it is told; the names of keys, never one of them."""
    return HoldOrder(
        name=inputs.spec.model_name or inputs.name,
        servers=f"http://{names.awake_name(inputs.name)}.{inputs.namespace}.svc:{SERVICE_PORT}",
        keys=tuple(one.name for one in inputs.spec.api_keys),
        keys_dir=KEYS_FOLDER,
        work_dir=contract.RUN_FOLDER,
        port=PORT,
        request_seconds=inputs.spec.request_seconds,
        drain_seconds=inputs.spec.drain_seconds,
        leave_seconds=LEAVE_SECONDS,
    )


def _build_pod(inputs: ServerInputs) -> Manifest:
    mounts = [
        Mount(name="work", path=contract.RUN_FOLDER, source={"emptyDir": {}}),
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
        *([keys_mount(inputs.spec.api_keys)] if inputs.spec.api_keys else []),
        *map(further, inputs.template.volumes),
    ]
    images = inputs.runtime.images
    pulled = images.pull_secrets if images is not None else ()
    return {
        "serviceAccountName": inputs.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_of(inputs.template),
        "terminationGracePeriodSeconds": LEAVE_SECONDS + inputs.spec.drain_seconds + GRACE_SECONDS,
        "containers": [_build_container(inputs, mounts)],
        "volumes": [mount.volume() for mount in mounts],
        **({"imagePullSecrets": [{"name": one.name} for one in pulled]} if pulled else {}),
        **merge_placement(_layers(inputs)),
    }


def _build_container(inputs: ServerInputs, mounts: list[Mount]) -> Manifest:
    """It is ready when it listens: that there are no servers is what it is for."""
    get = {"path": "/healthz", "port": names.PORT_CLIENTS, "scheme": "HTTP"}
    every = {"httpGet": get, "timeoutSeconds": 5}
    order = build_hold_order(inputs).model_dump_json(by_alias=True, exclude_none=True)
    return {
        "name": SERVER,
        "image": inputs.worker_image,
        **pull_policy_of(inputs.runtime),
        "command": COMMAND,
        "env": [
            *merge_env(_layers(inputs)),
            {"name": "HOME", "value": contract.HOME_FOLDER},
            NAMED,
            {"name": HOLD_VARIABLE, "value": literal(order)},
        ],
        "ports": [{"name": names.PORT_CLIENTS, "containerPort": PORT, "protocol": "TCP"}],
        "resources": SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "readinessProbe": {**every, "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {
            **every,
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "volumeMounts": [mount.mount() for mount in mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _layers(inputs: ServerInputs) -> PodLayers:
    """As a server's, without its devices."""
    return PodLayers(template=inputs.template, user=inputs.spec)
