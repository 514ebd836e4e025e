"""An account with exactly the rights of the operator's table, and no other."""

from cluster.kubectl import Kubectl
from rollout_operator.rbac import RULES


def grant(kubectl: Kubectl, namespace: str) -> str:
    """A token of an account with exactly the table's rights."""
    rules = [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        for rule in RULES
    ]
    name, api = f"operator-{namespace}", "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": "rollout-operator", "namespace": namespace}
    meta = {"name": name}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "rollout-operator"}},
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
            "subjects": [account],
        },
    )
    return kubectl("create", "token", "rollout-operator").strip()
