"""What takes a run of a cluster back to one of its own snapshots, and when it cannot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.cluster.objects import condition, dig
from rollout.errors import SpecError


def find_return(
    run: Mapping[str, Any], snapshot: Mapping[str, Any], request: str
) -> dict[str, Any]:
    """The change of the run's object (a merge patch): resumed, from that snapshot. Raises SpecError where it would do nothing.

    ``request``: a text that no earlier change had; it is written where the run names that snapshot already.
    """
    name, wanted = run["metadata"]["name"], snapshot["metadata"]["name"]
    spec = run["spec"]
    if condition(run, "Finished").get("status") == "True":
        raise SpecError(
            f"run/{name} has ended: make another run, with restoreFrom: {{snapshotRef: {{name: {wanted}}}}}"
        )
    if not spec.get("suspend"):
        raise SpecError(
            f"run/{name} is at work: rollout suspend {name}, rollout wait {name} --for Suspended, then this again"
        )
    if condition(snapshot, "Ready").get("status") != "True":
        raise SpecError(f"snapshot/{wanted} is not durable: rollout wait snapshot/{wanted}")
    of = dig(snapshot, "status.run") or {}
    if of.get("uid") != run["metadata"]["uid"]:
        raise SpecError(
            f"snapshot/{wanted} is of run {of.get('name')} ({of.get('uid')}): run/{name} goes back to its own snapshots"
            " only; make another run that begins with this one"
        )
    again = dig(run, "spec.restoreFrom.snapshotRef.name") == wanted
    from_ = {"snapshotRef": {"name": wanted}, "object": None, "request": request if again else None}
    return {"spec": {"suspend": False, "restoreFrom": from_}}
