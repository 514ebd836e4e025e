"""A server that speaks S3, in a pod: moto, with one bucket that anybody with a key may write."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.control.ports import find_free_port
from cluster.kubectl import Kubectl
from cluster.nodes import containers

NAME, PORT, BUCKET = "bucket", 5000, "runs"
KEYS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "testers-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_SERVE = f"""
import time, boto3
from moto.server import ThreadedMotoServer
ThreadedMotoServer("0.0.0.0", {PORT}).start()
boto3.client("s3", endpoint_url="http://127.0.0.1:{PORT}").create_bucket(Bucket="{BUCKET}")
print("ready", flush=True)
time.sleep(1 << 20)
"""


def start_bucket(kubectl: Kubectl) -> str:
    """Start it in kubectl's namespace and wait for its bucket; its address for pods."""
    volumes, mounts = containers.build_environment_mounts()
    labels = {"app": NAME}
    server = {
        "name": "s3",
        "image": containers.WORKER,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", _SERVE],
        "env": [{"name": name, "value": value} for name, value in KEYS.items()],
        "volumeMounts": mounts,
        "readinessProbe": {"httpGet": {"path": f"/{BUCKET}", "port": PORT}, "periodSeconds": 1},
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"containers": [server], "volumes": volumes, "terminationGracePeriodSeconds": 0},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": labels, "ports": [{"port": PORT}]},
    }
    kubectl.apply(pod, service)
    kubectl.wait("--for=condition=Ready", f"pod/{NAME}")
    # Of a name with dots the server would take the first part for a bucket's.
    return f"http://{kubectl.get('service', NAME)['spec']['clusterIP']}:{PORT}"


@contextmanager
def reached_from_here(kubectl: Kubectl) -> Iterator[str]:
    """Its address for this machine while the block lasts."""
    port = find_free_port()
    forward = subprocess.Popen(
        [
            str(kubectl.binary),
            f"--kubeconfig={kubectl.kubeconfig}",
            f"--namespace={kubectl.namespace}",
            "port-forward",
            f"pod/{NAME}",
            f"{port}:{PORT}",
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert forward.poll() is None, "kubectl port-forward ended"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        forward.kill()
        forward.wait()
