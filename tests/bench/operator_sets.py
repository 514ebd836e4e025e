"""What each contender is given: our runs, and the rivals' sets with their defaults written out.

The pods name a scheduler that is not there, so that nobody pays for looking for a node.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
PODS: Document = {
    "schedulerName": "nobody",
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "rollout.test/nothing:1"}],
}
PATIENCE_SECONDS = 86_400
"""Runs whose pods never come rest for as long as a measurement takes: with the default of half an hour thousands of
them fail one after the other while the last are still made, and what is measured as rest is their end."""
ANOTHER = "kueue.x-k8s.io/multikueue"
"""Controller of runs that our operator leaves to the twin and to the bare client."""
PATHS = {
    "run": "apis/rollout.dev/v1alpha1/namespaces/{}/rolloutruns",
    "jobset": "apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "lws": "apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
    "kuberay": "apis/ray.io/v1/namespaces/{}/rayclusters",
}


def build_run(index: int, *, suspend: bool, manager: str = "") -> Document:
    """A GRPO run like no other one: nothing that was computed for another run serves it."""
    spec: Document = {
        "suspend": suspend,
        "seed": index,
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 400 + index,
        },
        "limits": {"preRunningSeconds": PATIENCE_SECONDS},
    }
    if manager:
        spec["managedBy"] = manager
    return _document("rollout.dev/v1alpha1", "RolloutRun", f"run-{index:05d}", spec)


def build_jobset(index: int) -> Document:
    """Two replicated jobs: a Service and two Jobs."""
    job = {
        "parallelism": 1,
        "completions": 1,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": PODS},
    }
    roles = [
        {"name": role, "groupName": "default", "replicas": 1, "template": {"spec": job}}
        for role in ("learner", "actor")
    ]
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "replicatedJobs": roles,
    }
    return _document("jobset.x-k8s.io/v1alpha2", "JobSet", f"set-{index:05d}", spec)


def build_lws(index: int) -> Document:
    """A leader and a worker: a Service and the leader's StatefulSet; the worker's needs a leader pod."""
    pods = {name: value for name, value in PODS.items() if name != "restartPolicy"}
    spec = {
        "replicas": 1,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
        },
        "networkConfig": {"subdomainPolicy": "Shared"},
        "leaderWorkerTemplate": {
            "size": 2,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "workerTemplate": {"spec": pods},
        },
    }
    return _document("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", f"set-{index:05d}", spec)


def build_raycluster(index: int) -> Document:
    """A head and one worker: a Service and the pods."""
    template = {"spec": {**PODS, "restartPolicy": "Always"}}
    spec = {
        "rayVersion": "2.52.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template},
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "rayStartParams": {},
                "template": template,
            }
        ],
    }
    return _document("ray.io/v1", "RayCluster", f"set-{index:05d}", spec)


BUILDERS = {"jobset": build_jobset, "lws": build_lws, "kuberay": build_raycluster}
CHILDREN = {"jobset": 3, "lws": 2, "kuberay": 3}
"""How many children a set has while StatefulSets and Jobs make no pods."""


def jobset_settings(certificates: str, port: int) -> Document:
    """The shipped settings; certificates from a folder, no Lease, no metrics, no probes."""
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port, "certDir": certificates},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }


def lws_settings(certificates: str, port: int) -> Document:
    """As JobSet's."""
    changes = {"apiVersion": "config.lws.x-k8s.io/v1alpha1"}
    return {**jobset_settings(certificates, port), **changes}


def _document(version: str, kind: str, name: str, spec: Document) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
