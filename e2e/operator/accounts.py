"""People with an account and a kubeconfig of their own, who type `rollout`."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from operators import eventually

from cluster.kubectl import Kubectl


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with a kubeconfig."""

    kubeconfig: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollout", *arguments],
            env={"KUBECONFIG": str(self.kubeconfig), "PATH": "/usr/bin:/bin", "COLUMNS": "240"},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


def make_person(kubectl: Kubectl, name: str, rules: list[dict[str, Any]], folder: Path) -> Person:
    """An account with a Role of these rules, and a kubeconfig with its token."""
    meta = {"metadata": {"name": name}}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": kubectl.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", **meta},
        {**rbac, "kind": "Role", **meta, "rules": rules},
        {**rbac, "kind": "RoleBinding", **meta, "subjects": [subject], "roleRef": reference},
    )
    if rules:
        eventually(lambda: kubectl.may(name, "get", "rolloutruns"), f"{name} may do nothing")
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    [server] = config["clusters"]
    token = kubectl("create", "token", name).strip()
    context = {"cluster": server["name"], "user": name, "namespace": kubectl.namespace}
    config |= {
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return Person(kubeconfig=path)
