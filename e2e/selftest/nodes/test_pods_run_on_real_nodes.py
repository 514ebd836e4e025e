"""On real nodes pods really run: logs, exec, limits, names, Services, volumes, probes, eviction.

Quick: training/test_a_run_trains_in_pods.py needs all of it but limits, and test_the_charts_run_as_pods.py restricted pods.
"""

from pathlib import Path

import pytest

from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from cluster.nodes.addons import STORAGE_CLASS, build_volume
from ended import wait_for_end
from objects import build_pod, build_service, build_stateful_set

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.kit]

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINED = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
}


def test_a_restricted_pod_runs_speaks_and_takes_commands(real: Kubectl):
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    container = {
        "securityContext": CONTAINED,
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    real.apply(
        build_pod(
            "quiet",
            *("sh", "-c", "echo begun; exec sleep 3600"),
            container=container,
            securityContext=RESTRICTED,
            volumes=[shm],
        )
    )
    real.wait("--for=condition=Ready", "pod/quiet")

    assert real("logs", "quiet").strip() == "begun"
    assert "uid=1000" in real("exec", "quiet", "--", "id")
    assert "Read-only" in real.attempt("exec", "quiet", "--", "touch", "/file").stderr
    assert real("exec", "quiet", "--", "sh", "-c", "echo x >/dev/shm/f; cat /dev/shm/f") == "x\n"


def test_pods_of_two_nodes_find_each_other_by_name_and_by_service(real: Kubectl):
    ready = {"httpGet": {"path": "/hostname", "port": 8080}, "periodSeconds": 1}
    spread = SPREAD | {"labelSelector": {"matchLabels": {"app": "web"}}}
    template = build_pod(
        "web",
        *("httpd", "-f", "-p", "8080", "-h", "/etc"),
        container={"readinessProbe": ready},
        topologySpreadConstraints=[spread],
    )
    real.apply(
        build_stateful_set("web", 2, template),
        build_service("web", "web", 8080, headless=True),
        build_service("front", "web", 8080),
        build_pod("asker"),
    )
    real("rollout", "status", "statefulset/web", "--timeout=120s")
    real.wait("--for=condition=Ready", "pod/asker")

    nodes = real("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}")
    assert sorted(nodes.split()) == ["node-1", "node-2"]
    for pod in ("web-0", "web-1"):
        address = f"http://{pod}.web.{real.namespace}.svc.cluster.local:8080/hostname"
        assert real("exec", "asker", "--", "wget", "-qO-", address).strip() == pod
    answer = real("exec", "asker", "--", "wget", "-qO-", "http://front:8080/hostname")
    assert answer.strip() in {"web-0", "web-1"}


def test_a_claim_takes_a_static_volume_and_its_data_outlives_the_pod(
    real: Kubectl, real_local_cluster: LocalCluster, tmp_path: Path
):
    volume = real.namespace
    kept = real_local_cluster.instance.root / "volumes" / volume
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    mounts = {"container": {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}}
    mounts["volumes"] = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    real.apply(build_volume(volume, str(kept)), claim, build_pod("writer", **mounts))
    real.wait("--for=condition=Ready", "pod/writer")
    real("exec", "writer", "--", "sh", "-c", "echo written >/kept/file")
    real("delete", "pod", "writer", "--wait=true")

    real.apply(build_pod("reader", **mounts))
    real.wait("--for=condition=Ready", "pod/reader")

    assert real("exec", "reader", "--", "cat", "/kept/file") == "written\n"
    assert (kept / "file").read_text() == "written\n"


def test_a_pod_over_its_memory_is_killed_and_says_so(real: Kubectl):
    eater = ("sh", "-c", "head -c 100000000 /dev/zero | tail")
    limits = {"resources": {"limits": {"memory": "16Mi"}}}
    real.apply(build_pod("eater", *eater, container=limits, restartPolicy="Never"))

    (main,) = wait_for_end(real, "eater")["status"]["containerStatuses"]
    ended = main["state"]["terminated"]
    assert ended["reason"] in {"OOMKilled", "Error"}
    assert ended["exitCode"] == 137 or ended["reason"] == "OOMKilled"


def test_a_pod_reaches_the_api_server_with_its_own_account(real: Kubectl):
    mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
    real.apply(build_pod("account"))
    real.wait("--for=condition=Ready", "pod/account")

    script = f"ls {mounted}; nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo open"
    seen = real("exec", "account", "--", "sh", "-c", script).split()

    assert {"ca.crt", "namespace", "token", "open"} <= set(seen)
