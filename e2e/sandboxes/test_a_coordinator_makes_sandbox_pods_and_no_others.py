"""Whoever has a coordinator's token makes sandbox pods that go with its own pod: the chart's policy, asked by that account."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from brokered import Brokered, build_brokered, build_stranger, send, wait_for_policy

from cluster.kubectl import Kubectl
from cluster.providers import Cluster
from namespaces import in_namespace
from rollout.coordinator.sandboxes.broker import build_pod
from rollout.coordinator.sandboxes.pod_api import PodRefused
from rollout.coordinator.sandboxes.pool import PooledPod
from waiting import wait_until

pytestmark = pytest.mark.control_plane
CONTAINER = ("spec", "containers", 0)
SECURITY = (*CONTAINER, "securityContext")
GONE = object()
BAD: dict[str, tuple[tuple[Any, ...], Any]] = {
    "no label": (("metadata", "labels"), {}),
    "a worker's label": (("metadata", "labels", "rollout.dev/run"), "run"),
    "no owner": (("metadata", "ownerReferences"), []),
    "another owner": (("metadata", "ownerReferences", 0, "uid"), "another"),
    "a token": (("spec", "automountServiceAccountToken"), True),
    "an account": (("spec", "serviceAccountName"), "run-coordinator"),
    "the node's network": (("spec", "hostNetwork"), True),
    "the node's processes": (("spec", "hostPID"), True),
    "the node's memory": (("spec", "hostIPC"), True),
    "a node": (("spec", "nodeName"), "n1"),
    "the node's users": (("spec", "hostUsers"), True),
    "a runtime that nobody named": (("spec", "runtimeClassName"), "runc"),
    "root": (("spec", "securityContext", "runAsNonRoot"), False),
    "user 0": (("spec", "securityContext", "runAsUser"), 0),
    "every system call": (("spec", "securityContext", "seccompProfile"), {"type": "Unconfined"}),
    "every system call of the container": (
        (*SECURITY, "seccompProfile"),
        {"type": "Unconfined"},
    ),
    "another user of the container": ((*SECURITY, "runAsUser"), 0),
    "privilege": ((*SECURITY, "privileged"), True),
    "more privilege": ((*SECURITY, "allowPrivilegeEscalation"), GONE),
    "a root folder to write": ((*SECURITY, "readOnlyRootFilesystem"), False),
    "a capability": ((*SECURITY, "capabilities"), {"drop": ["ALL"], "add": ["NET_RAW"]}),
    "capabilities": ((*SECURITY, "capabilities"), GONE),
    "another image": ((*CONTAINER, "image"), "evil/image:1"),
    "an image that only begins so": ((*CONTAINER, "image"), "rollout.test/worker-evil:1"),
    "a secret as a variable": (
        (*CONTAINER, "env"),
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    ),
    "secrets as variables": ((*CONTAINER, "envFrom"), [{"secretRef": {"name": "s"}}]),
    "a port": ((*CONTAINER, "ports"), [{"containerPort": 80, "hostPort": 80}]),
    "calls from the node": (
        (*CONTAINER, "readinessProbe"),
        {"httpGet": {"host": "169.254.169.254", "port": 80}},
    ),
    "the group of root": (("spec", "securityContext", "runAsGroup"), 0),
    "no AppArmor": ((*SECURITY, "appArmorProfile"), {"type": "Unconfined"}),
    "no SELinux": (("spec", "securityContext", "seLinuxOptions"), {"type": "spc_t"}),
    "a device by claim": (("spec", "resourceClaims"), [{"name": "gpu"}]),
    "no limits": ((*CONTAINER, "resources"), {}),
    "much memory": ((*CONTAINER, "resources", "limits", "memory"), "100Gi"),
    "a device": ((*CONTAINER, "resources", "limits", "nvidia.com/gpu"), "1"),
    "no deadline": (("spec", "activeDeadlineSeconds"), GONE),
    "a long life": (("spec", "activeDeadlineSeconds"), 10**7),
    "another life": (("spec", "restartPolicy"), "Always"),
    "a folder of the node": (("spec", "volumes", 0), {"name": "box", "hostPath": {"path": "/"}}),
    "a secret": (("spec", "volumes", 0), {"name": "box", "secret": {"secretName": "s"}}),
    "a token as a volume": (
        ("spec", "volumes", 0),
        {"name": "box", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    ),
    "a folder without end": (("spec", "volumes", 0, "emptyDir"), {}),
    "a second container": (
        ("spec", "initContainers"),
        [{"name": "init", "image": "rollout.test/worker:1"}],
    ),
    "the place of the system": (("spec", "priorityClassName"), "system-node-critical"),
}


@pytest.fixture(scope="module")
def brokered(fake_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory):
    with in_namespace(fake_cluster.kubectl) as mine:
        made = build_brokered(mine, tmp_path_factory.mktemp("broker"))
        wait_for_policy(made)
        yield made


def good(brokered: Brokered, name: str = "run-sandbox-1") -> dict[str, Any]:
    pod = PooledPod(name=name, secret=b"s" * 32, key=b"k" * 32, made_at=0.0)
    return build_pod(brokered.order, pod, brokered.owner)


def changed(manifest: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    whole = copy.deepcopy(manifest)
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


def test_the_brokers_own_pods_are_made_listed_and_removed(brokered: Brokered):
    async def live() -> None:
        api = brokered.pods()
        await api.create(good(brokered))
        seen = (await api.list())["run-sandbox-1"]
        with pytest.raises(PodRefused, match="409"):
            await api.create(good(brokered))
        await api.delete(seen.name, "another-uid")
        assert seen.name in await api.list(), "a namesake that was made later is not removed"
        await api.delete(seen.name, seen.uid)
        await api.delete("never-there", "uid")

    asyncio.run(live())


@pytest.mark.parametrize("wish", BAD, ids=lambda one: one.replace(" ", "-"))
def test_no_other_pod_is_made(brokered: Brokered, wish: str):
    bad = changed(good(brokered, "run-sandbox-bad"), *BAD[wish])
    with pytest.raises(PodRefused, match=r"HTTP (403|422)"):
        asyncio.run(brokered.pods().create(bad))


def test_no_pod_of_others_is_removed_changed_or_entered(brokered: Brokered):
    with pytest.raises(PodRefused, match="that go with its own pod"):
        asyncio.run(brokered.pods().delete(brokered.owner.name, brokered.owner.uid))
    headers = {"Authorization": f"Bearer {Path(brokered.api.token_file).read_text()}"}
    pod = f"{brokered.api.api_url}/api/v1/namespaces/{brokered.kubectl.namespace}/pods"
    calls = (
        ("PATCH", f"{pod}/{brokered.owner.name}"),
        ("GET", f"{pod}/{brokered.owner.name}"),
        ("POST", f"{pod}/{brokered.owner.name}/exec?command=id"),
        ("GET", f"{pod}/{brokered.owner.name}/log"),
        ("DELETE", pod),
        ("GET", f"{brokered.api.api_url}/api/v1/pods"),
        ("GET", pod.replace("/pods", "/secrets")),
    )

    async def ask() -> list[int]:
        async with aiohttp.ClientSession(headers=headers) as session:
            found = []
            for method, url in calls:
                sent = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
                async with session.request(
                    method, url, data=b"{}", headers=sent, ssl=False
                ) as answer:
                    found.append(answer.status)
            return found

    assert asyncio.run(ask()) == [403] * len(calls)


def test_accounts_that_are_no_coordinators_are_none_of_the_policys_business(brokered: Brokered):
    kubectl: Kubectl = brokered.kubectl
    kubectl("create", "serviceaccount", "trino-coordinator")
    kubectl("create", "role", "makes-pods", "--verb=create", "--resource=pods")
    kubectl(
        *("create", "rolebinding", "makes-pods", "--role=makes-pods"),
        f"--serviceaccount={kubectl.namespace}:trino-coordinator",
    )
    wait_until(lambda: kubectl.may("trino-coordinator", "create", "pods"), "it may make pods")
    token = kubectl("create", "token", "trino-coordinator").strip()
    status, said = send(brokered, token, build_stranger())
    assert status == 201, said
