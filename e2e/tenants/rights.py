"""What an account may do by the roles it is bound to, and what it did by the API server's own log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.control import audit
from cluster.kubectl import Kubectl


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource; an empty `name` is any object."""

    group: str
    resource: str
    verb: str
    name: str = ""


def granted(kubectl: Kubectl, account: str, namespace: str) -> set[Right]:
    """Of a service account, by every binding that names it."""
    wanted = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    bindings = kubectl.get("clusterrolebindings")["items"] + _everywhere(kubectl, "rolebindings")
    mine = [one for one in bindings if wanted in (one.get("subjects") or ())]
    return {right for one in mine for right in _rights_of(_role(kubectl, one))}


def used(log: Path, user: str) -> tuple[set[Right], list[str]]:
    """What a user did, and what it was not let do. An apply that made an object needed the right to create it."""
    found, refused = set(), []
    for call in audit.read(log):
        if call.user != user or not call.resource:
            continue
        name = "/".join(filter(None, (call.resource, call.subresource)))
        made = call.verb == "patch" and call.status == 201
        for verb in (call.verb, *(("create",) if made else ())):
            found.add(Right(group=call.group, resource=name, verb=verb, name=call.name))
        if not call.permitted:
            refused.append(f"{call.verb} {name} {call.namespace}/{call.name}")
    return found, refused


def is_used(right: Right, done: set[Right]) -> bool:
    """Whether something was done that this right is for."""
    anything = not right.name
    return any(
        (one.group, one.resource, one.verb) == (right.group, right.resource, right.verb)
        and (anything or one.name == right.name)
        for one in done
    )


def _rights_of(role: dict[str, Any]) -> Iterator[Right]:
    for rule in role.get("rules") or ():
        for group in rule.get("apiGroups") or ("",):
            for resource in rule.get("resources") or ():
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or ("",):
                        yield Right(group=group, resource=resource, verb=verb, name=name)


def _role(kubectl: Kubectl, binding: dict[str, Any]) -> dict[str, Any]:
    kind, name = binding["roleRef"]["kind"].lower(), binding["roleRef"]["name"]
    place = ("-n", binding["metadata"]["namespace"]) if kind == "role" else ()
    return kubectl.get(kind, name, *place)


def _everywhere(kubectl: Kubectl, plural: str) -> list[dict[str, Any]]:
    return json.loads(kubectl.raw(f"/apis/rbac.authorization.k8s.io/v1/{plural}"))["items"]
