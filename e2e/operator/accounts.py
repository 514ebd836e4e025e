"""People with an account and a kubeconfig of their own, who type `rollout`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from operators import eventually

from cluster.kubectl import Kubectl

READ = ["get", "list", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with a kubeconfig, in the folder where it lies, before a terminal of so many columns."""

    kubeconfig: Path
    columns: int = 240

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.start([sys.executable, "-m", "rollout", *arguments])

    def start(
        self, command: Sequence[str], errors: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        """Any program that reads a kubeconfig; `errors`: where its standard error goes."""
        ours = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        mine = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": str(self.columns)}
        return subprocess.run(
            command,
            env={**ours, **mine, "PATH": "/usr/bin:/bin"},
            cwd=self.kubeconfig.parent,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=180,
            check=False,
        )


def bind(kubectl: Kubectl, kind: str, name: str, account: str, rules: list[dict[str, Any]]) -> None:
    """Give an account of the namespace these rights, there (`Role`) or everywhere (`ClusterRole`)."""
    rbac, meta = {"apiVersion": "rbac.authorization.k8s.io/v1"}, {"metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": kubectl.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    kubectl.apply(
        {**rbac, "kind": kind, **meta, "rules": rules},
        {**rbac, "kind": f"{kind}Binding", **meta, "subjects": [subject], "roleRef": reference},
    )


def make_person(
    kubectl: Kubectl, name: str, rules: list[dict[str, Any]], folder: Path, columns: int = 240
) -> Person:
    """An account with a Role of these rules, and a kubeconfig with its token."""
    kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    bind(kubectl, "Role", name, name, rules)
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
    return Person(kubeconfig=path, columns=columns)
