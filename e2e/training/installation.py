"""The operator and a runtime on real nodes: the manifests that users apply, with images that no registry holds.

The image is a bare Debian. What runs in it, interpreter and packages, is this machine's own environment, mounted
read-only from the node: for the pods of a run by the runtime's volumes, for the operator in its Deployment.
"""

from pathlib import Path
from typing import Any

import samples

import yamls
from cluster.kubectl import Kubectl
from cluster.nodes import containers
from cluster.paths import REPOSITORY
from cluster.providers import Cluster
from terminal import why_of_pods
from waiting import wait_until

Manifest = dict[str, Any]

NAMESPACE = "rollout-system"
WEBHOOK = {"rollout-webhook", "rollout-certificates"}
"""Left out where it is not asked for: its tests are elsewhere, and it is two more processes on a small machine."""
SANDBOX = {
    "userNamespaces": True,
    "memory": "640Mi",
    "memoryRequest": "64Mi",
    "cpuRequest": "50m",
    "maxPods": 8,
}
"""The nodes are two small ones: pods are counted for what they use."""
ROLES = ("coordinator", "learner", "actors")


def install(cluster: Cluster, cache: Path) -> None:
    """The definitions, the runtime of the sample and the operator, ready. Raises BuildError, ClusterError."""
    cluster.import_image(containers.ensure_worker())
    found = yamls.read_all(cluster.kubectl("kustomize", str(REPOSITORY / "manifests/default")))
    definitions = [one for one in found if one["kind"] == "CustomResourceDefinition"]
    cluster.kubectl.apply(*definitions)
    names = [f"crd/{one['metadata']['name']}" for one in definitions]
    cluster.kubectl.wait("--for=condition=Established", *names)
    outside = Kubectl(
        binary=cluster.kubectl.binary, kubeconfig=cluster.kubectl.kubeconfig, namespace=""
    )
    outside.apply(*build_operator(found, cache), build_runtime(cache))
    wait_for_operator(outside)


def wait_for_operator(kubectl: Kubectl) -> None:
    """Until the operator's pod is ready, on whichever node; a pod without its image is said at once."""

    def ready() -> bool:
        status = kubectl.get("deployment", "rollout-operator", "-n", NAMESPACE).get("status", {})
        return status.get("readyReplicas") == 1 and "unavailableReplicas" not in status

    def hopeless() -> str:
        return why_of_pods(kubectl.get("pods", "-n", NAMESPACE)["items"])

    wait_until(ready, "the operator is ready", every=0.5, hopeless=hopeless)


def build_operator(
    rendered: list[Manifest], cache: Path, *, webhook: bool = False
) -> list[Manifest]:
    """What `manifests/default` renders, but its definitions: packages from the node, one replica of each; the webhook where it is asked for."""
    return [
        _allowing(_adapted(one), build_folders(cache))
        for one in rendered
        if one["kind"] != "CustomResourceDefinition" and (webhook or not _is_of_webhook(one))
    ]


def _is_of_webhook(manifest: Manifest) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return kind == "ValidatingWebhookConfiguration" or (kind == "Deployment" and name in WEBHOOK)


def build_folders(cache: Path) -> list[str]:
    """Folders of nodes that the runtime gives to the pods of runs."""
    volumes, _ = containers.build_environment_mounts()
    return [str(cache), *(one["hostPath"]["path"] for one in volumes)]


def cache_of(kubectl: Kubectl) -> Path:
    """The folder of models that the runtime `cpu` has, which the policy of pods allows."""
    runtime = kubectl.get("clusterrolloutruntime", "cpu")
    return Path(runtime["spec"]["modelCache"]["hostPath"]["path"])


def _allowing(manifest: Manifest, folders: list[str]) -> Manifest:
    """As with `admissionPolicy.podsMay.hostPaths` and `images.worker`: these folders of nodes, and our image."""
    if manifest["kind"] == "ValidatingAdmissionPolicy":
        image = containers.WORKER.rpartition(":")[0]
        for one in manifest["spec"]["validations"]:
            allowed = one["expression"].replace("path in []", f"path in {folders}")
            one["expression"] = allowed.replace(
                "['registry.invalid/rollout-worker']", f"['{image}']"
            )
    return manifest


def _adapted(manifest: Manifest) -> Manifest:
    if manifest["kind"] == "Namespace":
        # folders of the node are not for restricted pods
        manifest["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "privileged"}
    if manifest["kind"] == "Deployment":
        volumes, mounts = containers.build_environment_mounts()
        manifest["spec"]["replicas"] = 1
        pod = manifest["spec"]["template"]["spec"]
        pod["volumes"] += volumes
        container = pod["containers"][0]
        container["image"] = containers.WORKER
        container["imagePullPolicy"] = "Never"
        container["volumeMounts"] += mounts
    return manifest


def build_runtime(cache: Path) -> Manifest:
    """The sample's, with our images, the environment for every role, and a folder that keeps the models."""
    volumes, mounts = containers.build_environment_mounts()
    given = [
        {
            "name": volume["name"],
            "mountPath": mount["mountPath"],
            "hostPath": {"path": volume["hostPath"]["path"]},
            "readOnly": True,
        }
        for volume, mount in zip(volumes, mounts, strict=True)
    ]
    return samples.build_runtime(
        images={"worker": containers.WORKER, "vllm": containers.WORKER, "pullPolicy": "Never"},
        modelCache={"emptyDir": None, "hostPath": {"path": str(cache)}},
        roles={role: {"volumes": given} for role in ROLES},
        sandbox=SANDBOX,
        allowed={"images": ["rollout.test/"]},
    )
