"""The charts on real nodes: the real image's pods, what they say and write, and how they are restarted."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import charts
from cluster.errors import BuildError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape, running
from cluster.nodes import containers
from cluster.skips import or_skip
from waiting import wait_until

SECRET = "rollout-webhook-tls"
PORTS = {"operator": 8080, "webhook": 8081, "certificates": 8082}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Where the release is (`system`) and where people work (`kubectl`)."""

    kubectl: Kubectl
    system: Kubectl

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The pods of a Deployment."""
        selector = f"app.kubernetes.io/component={component}"
        return self.system.get("pods", "-l", selector)["items"]

    def names(self, *components: str) -> set[str]:
        """The names of their pods."""
        return {pod["metadata"]["name"] for one in components for pod in self.pods(one)}

    def scrape(self, component: str) -> list[str]:
        """/metrics of each pod, as Prometheus would read it."""
        start = f"/api/v1/namespaces/{charts.NAMESPACE}/pods"
        paths = [f"{start}/{pod}:{PORTS[component]}/proxy/metrics" for pod in self.names(component)]
        return [self.system.raw(path) for path in paths]

    def configuration(self) -> dict[str, Any]:
        """What the API server asks whom."""
        return self.kubectl.get("validatingwebhookconfiguration", "rollout-webhook")

    def restart(self, *components: str) -> None:
        """`kubectl rollout restart`, until the new pods serve and the old ones are gone."""
        old = self.names(*components)
        for one in components:
            self.system("rollout", "restart", f"deployment/rollout-{one}")
        for one in components:
            self.system("rollout", "status", f"deployment/rollout-{one}", "--timeout=180s")
        wait_until(lambda: not old & self.names(*components), "the old pods are gone")

    def certificate(self) -> bytes:
        """The server's certificate in the Secret."""
        data = self.system.get("secret", SECRET).get("data", {})
        return base64.b64decode(data.get("tls.crt", ""))

    def num_loads(self) -> list[int]:
        """How often each webhook pod has loaded a certificate."""
        logs = [self.system("logs", pod) for pod in sorted(self.names("webhook"))]
        return [text.count("certificate loaded") for text in logs]

    def wait_until_served(self, loads_before: list[int]) -> None:
        """Wait until every webhook pod serves with a newer certificate.

        A touched pod is looked at at once by its kubelet, which else takes up to two minutes over a Secret.
        """
        for pod in self.names("webhook"):
            mark = f"touched={datetime.now(UTC).timestamp()}"
            self.system("annotate", "--overwrite", "pod", pod, mark)

        def newer() -> bool:
            pairs = zip(self.num_loads(), loads_before, strict=True)
            return all(now > then for now, then in pairs)

        wait_until(newer, "every pod serves with the new certificate")


def image_values(image: str = containers.OPERATOR) -> dict[str, Any]:
    """Values that take the image which was built here."""
    repository, tag = image.split(":")
    return {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}


@contextmanager
def real_nodes() -> Iterator[LocalCluster]:
    """Two real nodes that have the operator's image. Skips where that cannot be."""
    with or_skip(BuildError):
        archive = containers.ensure_operator()
    with or_skip(BuildError), running(Shape(fake_nodes=0, real_nodes=2)) as made:
        made.import_image(archive)
        yield made
