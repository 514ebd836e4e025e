"""What may leave for the API server as a snapshot's errand: the last look before it is sent. Pure.

It asks nothing of the code that rendered: an object of another namespace, kind or name, or a pod with more than a run's
coordinator may have, is never sent. The chart's admission policy on the operator's own user says the same once more.
"""

from __future__ import annotations

from rollout_api import names
from rollout_operator.run.permitted import (
    Allowances,
    look_at_account,
    look_at_pod,
    refused_child,
)
from rollout_operator.run.render.inputs import Manifest

_KINDS = {"Job": "batch/v1", "ServiceAccount": "v1"}


def check_errand(
    manifest: Manifest, *, name: str, namespace: str, uid: str, allowances: Allowances
) -> None:
    """Raises ChildRefused that names the object, the field, what is permitted and what was found.

    ``name``, ``namespace`` and ``uid`` are those of the RolloutSnapshot.
    """
    kind, meta = manifest["kind"], manifest["metadata"]
    if _KINDS.get(kind) != manifest["apiVersion"]:
        found = f"{manifest['apiVersion']} {kind}"
        raise refused_child(manifest, "kind", "a Job or a ServiceAccount", found)
    if meta.get("namespace") != namespace:
        raise refused_child(manifest, "metadata.namespace", namespace, meta.get("namespace"))
    if meta["name"] not in (known := (names.purge_name(uid), names.adopt_name(uid))):
        raise refused_child(manifest, "metadata.name", " or ".join(known), meta["name"])
    owners = [(one["kind"], one["name"], one["uid"]) for one in meta.get("ownerReferences") or ()]
    if owners != [("RolloutSnapshot", name, uid)]:
        raise refused_child(manifest, "metadata.ownerReferences", f"snapshot {name}", owners)
    if kind == "ServiceAccount":
        faults = look_at_account(manifest)
    else:
        account = allowances.accounts.get("coordinator", meta["name"])
        faults = look_at_pod(manifest["spec"]["template"]["spec"], account, allowances)
    for field, expected, found in faults:
        raise refused_child(manifest, field, expected, found)
