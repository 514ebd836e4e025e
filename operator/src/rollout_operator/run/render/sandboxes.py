"""Sandbox pods: the template that a coordinator makes them from, its right to do so, and the network that they do not have.

The operator renders and makes none of them itself. The chart's admission policy holds what a coordinator makes to the
same rules, whatever the template says.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollout_api import names
from rollout_api.checks.environment.agents import find_image, owns_its_loop
from rollout_api.checks.environment.tools import find_in_pods
from rollout_api.v1alpha1.runtime import Sandbox
from rollout_api.worker import SandboxOrder
from rollout_operator.run.render.inputs import Inputs, Manifest
from rollout_operator.run.render.layers import plain
from rollout_operator.run.render.pods import CONTAINED, pull_policy_of, worker_image

PORT = 8001
USER_ID = 65534
"""Nobody: no user of any other pod of ours."""
FOLDER_SIZE, SHARED_SIZE = "64Mi", "16Mi"
FOLDERS = {"box": "/box", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - in the sandbox
AGENT_SIZE = "16Mi"
AGENT_FOLDERS = {"tests": "/tests", "logs": "/logs"}
"""Where an agent's verifier finds its files, and writes its reward."""
AGENT_HOME = {"name": "box", "mountPath": "/app"}
DEADLINES = 2
"""A pod may be kept ready for a lifetime, and then had for one."""


def find_sandbox(inputs: Inputs) -> Sandbox | None:
    """The runtime's, where something of the run needs it."""
    needed = any(find_in_pods(inputs.spec))
    return inputs.runtime.sandbox if needed else None


def build_sandbox_order(inputs: Inputs) -> SandboxOrder | None:
    """What the coordinator is told; None where nothing of the run needs it."""
    sandbox = find_sandbox(inputs)
    if sandbox is None:
        return None
    return SandboxOrder(
        template=build_sandbox_template(inputs, sandbox),
        port=PORT,
        memory=sandbox.memory,
        user_namespaces=sandbox.user_namespaces,
        pods_max=sandbox.max_pods,
        warm=sandbox.warm_pods,
        age_seconds=sandbox.lifetime_seconds,
    )


def build_sandbox_template(inputs: Inputs, sandbox: Sandbox) -> Manifest:
    """One pod, without its name, owner, command and variables."""
    limits = {"cpu": sandbox.cpu, "memory": sandbox.memory}
    requests = {
        "cpu": sandbox.cpu_request or sandbox.cpu,
        "memory": sandbox.memory_request or sandbox.memory,
    }
    folders, mounts = folders_of(inputs)
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINES * sandbox.lifetime_seconds,
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "sandbox",
                "image": image_of(inputs, sandbox),
                **pull_policy_of(inputs.runtime),
                "workingDir": "/box",
                "resources": {"requests": requests, "limits": limits},
                "securityContext": CONTAINED,
                "volumeMounts": mounts,
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [
            {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": _size(name)}}
            for name in folders
        ],
    }
    if sandbox.user_namespaces:
        spec["hostUsers"] = False
    if sandbox.runtime_class_name is not None:
        spec["runtimeClassName"] = sandbox.runtime_class_name
    if sandbox.node_selector:
        spec["nodeSelector"] = dict(sandbox.node_selector)
    if sandbox.tolerations:
        spec["tolerations"] = [plain(one) for one in sandbox.tolerations]
    images = inputs.runtime.images
    if images is not None and images.pull_secrets:
        spec["imagePullSecrets"] = [{"name": one.name} for one in images.pull_secrets]
    return {"metadata": {"labels": sandbox_labels(inputs)}, "spec": spec}


def image_of(inputs: Inputs, sandbox: Sandbox) -> str:
    """The one that the run names for a program that owns its loop, else the runtime's."""
    named = find_image(inputs.spec.train.environment if inputs.spec.train else None)
    return named[1] if named is not None else sandbox.image or worker_image(inputs)


def folders_of(inputs: Inputs) -> tuple[Mapping[str, str], list[Manifest]]:
    """What can be written in a pod, and where it is seen: an agent's pod has folders for what judges it, too."""
    train = inputs.spec.train
    holds_agent = owns_its_loop(train.environment if train is not None else None)
    folders = {**FOLDERS, **(AGENT_FOLDERS if holds_agent else {})}
    mounts: list[Manifest] = [{"name": name, "mountPath": path} for name, path in folders.items()]
    return folders, [*mounts, *([AGENT_HOME] if holds_agent else [])]


def _size(name: str) -> str:
    if name in AGENT_FOLDERS:
        return AGENT_SIZE
    return SHARED_SIZE if name == "shm" else FOLDER_SIZE


def sandbox_labels(inputs: Inputs) -> dict[str, str]:
    """By which the coordinator and the policy find them; they have none of the labels of workers."""
    return {
        names.LABEL_NAME: "rollout-sandbox",
        names.LABEL_PART_OF: "rollout",
        names.LABEL_SANDBOX_OF: inputs.uid,
    }


def build_sandbox_children(inputs: Inputs) -> list[Manifest]:
    """What of a run attempt is there for its sandbox pods."""
    if find_sandbox(inputs) is None:
        return []
    return [build_sandbox_binding(inputs), build_sandbox_policy(inputs)]


def build_sandbox_binding(inputs: Inputs) -> Manifest:
    """The coordinator may make, list and delete pods; an admission policy holds it to sandboxes of its own."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": inputs.meta(names.sandboxes_name(inputs.name), "coordinator"),
        "roleRef": inputs.platform.coordinator_role.for_sandboxes().document(),
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": inputs.account("coordinator"),
                "namespace": inputs.namespace,
            }
        ],
    }


def build_sandbox_policy(inputs: Inputs) -> Manifest:
    """Nothing goes out of a sandbox pod, and only the run's actors come in; its coordinator where it asks servers for their tools."""
    train = inputs.spec.train
    environment = train.environment if train else None
    asks = environment is not None and bool(environment.mcp_servers)
    roles: tuple[names.Role, ...] = ("actor", "coordinator") if asks else ("actor",)
    callers = [
        {"podSelector": {"matchLabels": names.worker_labels(inputs.name, inputs.uid, role)}}
        for role in roles
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": inputs.meta(names.sandboxes_name(inputs.name), "coordinator"),
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_SANDBOX_OF: inputs.uid}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": callers,
                    "ports": [{"port": PORT, "protocol": "TCP"}],
                }
            ],
        },
    }
