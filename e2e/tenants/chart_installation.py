"""The chart without its pods: its objects in a cluster, its three processes on this machine under the chart's accounts."""

import base64
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from operators import Operator, operating
from people import Person
from resolving import HOSTS

import webhooks
from charts import NAMESPACE, objects, render
from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.kubectl import Kubectl
from cluster.providers import Cluster
from runs import STORAGE, install_crds
from waiting import wait_until

RUNS_MAX = 3
"""Started runs of a namespace."""
VALUES = {"operator": {"runsPerNamespace": RUNS_MAX}, "runtime": {"create": False}}
CLASSES = [{"name": "gpu", "memory": "80Gi", "perNode": 8, "resourceName": "nvidia.com/gpu"}]
CEILINGS = {"actorReplicas": 4, "accelerators": 8}
RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "ClusterRolloutRuntime",
    "metadata": {"name": "default"},
    "spec": {
        "acceleratorClasses": CLASSES,
        "ceilings": CEILINGS,
        "allowedNamespaces": {"from": "All"},
    },
}
OTHERS = {**RUNTIME, "metadata": {"name": "others"}}
OTHERS["spec"] = {"allowedNamespaces": {"from": "Names", "names": ["somebody-else"]}}
"""A runtime of another team."""
PROCESSES = frozenset({"Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"})
"""Of the chart, what pods alone need."""
OPERATOR, WEBHOOK, CERTIFICATES = "rollout-operator", "rollout-webhook", "rollout-certificates"
SECRET = "rollout-webhook-tls"
PARTS = {OPERATOR: "rollout_operator", WEBHOOK: "rollout_operator.webhook"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A cluster with the chart in it. `hosts`: names of the cluster's network; `review`: where the webhook listens."""

    cluster: Cluster
    operator: Operator
    webhook: subprocess.Popen[bytes]
    review: int
    hosts: Path
    chart: list[dict[str, Any]]

    @property
    def kubectl(self) -> Kubectl:
        """As the administrator."""
        return self.cluster.kubectl

    def person(self, user: str = "", *groups: str, namespace: str = "") -> Person:
        """Somebody."""
        path = self.kubectl.kubeconfig
        return Person(kubeconfig=path, user=user, groups=groups, namespace=namespace)

    def account(self, name: str, namespace: str = NAMESPACE) -> Person:
        """A service account, as itself."""
        all_of = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        user = f"system:serviceaccount:{namespace}:{name}"
        return self.person(user, *all_of, "system:authenticated", namespace=namespace)

    def audit_log(self) -> Path:
        """What the API server wrote of every call."""
        assert self.cluster.local is not None
        return self.cluster.local.instance.audit_log


@contextmanager
def installed(cluster: Cluster, scratch: Path) -> Iterator[Installation]:
    """The chart's objects, and its processes for a block."""
    review, *healths = find_free_ports([LOOPBACK] * 4)
    chart = objects(render(values=VALUES))
    system = replace(cluster.kubectl, namespace=NAMESPACE)
    install_crds(cluster.kubectl)
    cluster.kubectl("create", "namespace", NAMESPACE)
    anywhere = replace(cluster.kubectl, namespace="")
    anywhere.apply(*_without_pods(chart, review), RUNTIME, OTHERS, STORAGE)
    hosts = scratch / "hosts"
    hosts.touch()
    given = {one["metadata"]["name"]: _environment(one) for one in chart if _is_process(one)}
    paths = {name: webhooks.write_kubeconfig(system, name, scratch) for name in given}
    settings = {
        name: given[name] | {"ROLLOUT_HEALTH_PORT": str(port), "KUBECONFIG": str(paths[name])}
        for name, port in zip(given, healths, strict=True)
    }
    with ExitStack() as stack:
        first = stack.enter_context(_certified(system, settings, scratch, review))
        operator = stack.enter_context(_operating(settings[OPERATOR], scratch, hosts))
        yield Installation(
            cluster=cluster,
            operator=operator,
            webhook=first,
            review=review,
            hosts=hosts,
            chart=chart,
        )


@contextmanager
def _operating(settings: dict[str, str], scratch: Path, hosts: Path) -> Iterator[Operator]:
    named = {
        **settings,
        HOSTS: str(hosts),
        "ROLLOUT_IDENTITY": "the-operator",
        "ROLLOUT_LEADER_ELECTION": "true",
    }
    path, port = Path(named.pop("KUBECONFIG")), int(named.pop("ROLLOUT_HEALTH_PORT"))
    command = (str(Path(__file__).with_name("resolving.py")), PARTS[OPERATOR])
    with operating(path, port, scratch / "operator.log", command=command, **named) as process:
        yield process


@contextmanager
def _certified(
    system: Kubectl, settings: dict[str, dict[str, str]], scratch: Path, review: int
) -> Iterator[subprocess.Popen[bytes]]:
    """The webhook with the certificate that the certificate process made, mounted as a kubelet would."""
    folder = scratch / "mounted"
    folder.mkdir()
    certificates = settings[CERTIFICATES] | {"ROLLOUT_WEBHOOK_NAMES": "localhost"}
    serving = settings[WEBHOOK] | {
        "ROLLOUT_WEBHOOK_HOST": LOOPBACK,
        "ROLLOUT_WEBHOOK_PORT": str(review),
        "ROLLOUT_WEBHOOK_CERTIFICATES": str(folder),
    }
    with webhooks.process("rollout_operator.rotation", certificates):
        data = wait_until(
            lambda: system.get("secret", SECRET).get("data"), "the webhook has a certificate"
        )
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_bytes(base64.b64decode(data[name]))
        with webhooks.process(PARTS[WEBHOOK], serving) as process:
            ready = f"http://{LOOPBACK}:{serving['ROLLOUT_HEALTH_PORT']}/readyz"
            wait_until(lambda: webhooks.fetch(ready)[0] == 200, "the webhook is ready")
            yield process
            process.kill()  # told to end, it would answer for some seconds more


def _without_pods(chart: list[dict[str, Any]], review: int) -> list[dict[str, Any]]:
    """The chart's objects; the webhook is asked by URL, since it runs on this machine."""
    kept = [one for one in chart if one["kind"] not in PROCESSES]
    for one in kept:
        for hook in one.get("webhooks", ()):
            hook["clientConfig"] = {"url": f"https://localhost:{review}/validate"}
    return kept


def _is_process(manifest: dict[str, Any]) -> bool:
    return manifest["kind"] == "Deployment"


def _environment(deployment: dict[str, Any]) -> dict[str, str]:
    """What the chart tells a process; names of pods and namespaces come from the kubelet."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return told | {"ROLLOUT_OPERATOR_NAMESPACE": NAMESPACE}


def memory_bytes(quantity: str) -> int:
    """A limit as a pod states it."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity)
    assert found, quantity
    return int(found[1]) << {"Ki": 10, "Mi": 20, "Gi": 30}[found[2]]
