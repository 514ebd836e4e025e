"""A metrics adapter for tests: serves `custom.metrics.k8s.io`, with which Kubernetes' own HPA loop asks about pods.

The load of all servers together is what a test says; each pod that is asked about has its share of it.
"""

import json
import re
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cluster.control.pki import build_authority
from cluster.kubectl import Kubectl

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
ROOT = f"/apis/{GROUP}/{VERSION}"
_ASKED = re.compile(rf"{re.escape(ROOT)}/namespaces/([^/]+)/pods/\*/([^/]+)$")
AGGREGATION = ("--enable-aggregator-routing=false",)
"""For the API server: it finds the adapter by the name of an ExternalName Service."""


@dataclass(slots=True, kw_only=True)
class Gauges:
    """``load``: of all pods together, None for an adapter that knows nothing of it; ``asked``: metrics that were asked for."""

    pods: Callable[[str, str], list[str]]
    load: float | None = 0.0
    asked: set[str] = field(default_factory=set)

    def answer(self, path: str) -> dict[str, Any] | None:
        """What is served there; None for nothing."""
        parts = urlsplit(path)
        if parts.path == ROOT:
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": [],
            }
        found = _ASKED.fullmatch(unquote(parts.path))
        if found is None or self.load is None:
            return None
        namespace, metric = found.groups()
        self.asked.add(metric)
        [selector] = parse_qs(parts.query).get("labelSelector", [""])
        names = self.pods(namespace, selector)
        share = round(1000 * self.load / max(len(names), 1))
        items = [_value(namespace, name, metric, share) for name in names]
        head = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return {**head, "items": items}


def _value(namespace: str, pod: str, metric: str, milli: int) -> dict[str, Any]:
    about = {"kind": "Pod", "apiVersion": "/v1", "namespace": namespace, "name": pod}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "describedObject": about,
        "metric": {"name": metric},
        "timestamp": now,
        "value": f"{milli}m",
    }


@contextmanager
def measuring(kubectl: Kubectl) -> Iterator[Gauges]:
    """An adapter for the length of a block; the API server sends its group there."""

    def pods(namespace: str, selector: str) -> list[str]:
        found = replace(kubectl, namespace=namespace).get("pods", "-l", selector)["items"]
        return [one["metadata"]["name"] for one in found if "podIP" in one.get("status", {})]

    anywhere = replace(kubectl, namespace="")
    gauges = Gauges(pods=pods)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _build_handler(gauges))
    server.socket = _build_context().wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    try:
        anywhere.apply(*_build_service(int(port)))
        anywhere.wait("--for=condition=Available", f"apiservice/{VERSION}.{GROUP}")
        yield gauges
    finally:
        anywhere.attempt("delete", f"apiservice/{VERSION}.{GROUP}")
        server.shutdown()
        server.server_close()


def _build_handler(gauges: Gauges) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = gauges.answer(self.path)
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            body = json.dumps(status if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """The audit log has it."""

    return Handler


def _build_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as scratch:
        build_authority().issue("adapter", names=["localhost"]).write(Path(scratch), "adapter")
        context.load_cert_chain(f"{scratch}/adapter.crt", f"{scratch}/adapter.key")
    return context


def _build_service(port: int) -> list[dict[str, Any]]:
    meta = {"name": "adapter", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"port": port}],
            },
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {**meta, "port": port},
            },
        },
    ]
