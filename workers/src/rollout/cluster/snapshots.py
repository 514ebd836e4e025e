"""Snapshots of a cluster as ``rollout snapshot`` tells those of a machine: by their objects, never by their bytes. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from rollout.cluster.kinds import GROUP, SNAPSHOT, VERSION
from rollout.cluster.objects import Object, condition, dig, parse_time
from rollout.errors import SnapshotRefused
from rollout_api.names import LABEL_SCHEDULE

RUN_CHARACTERS_MAX = 50
"""Of a run's name in the names of its snapshots, which a label has to hold."""
DIGEST, MANIFESTS = "blake3:", "/snapshots/manifests/"


def build_snapshot(run: Object, *, step: int | None, label: str) -> dict[str, Any]:
    """The object that asks for a snapshot of this very run: of the anchor of ``step``, None: of the newest."""
    name, uid = run["metadata"]["name"], run["metadata"]["uid"]
    source: dict[str, Any] = {"name": name, "uid": uid}
    spec: dict[str, Any] = {
        "source": {"run": {**source, **({} if step is None else {"step": step})}}
    }
    begin = name[:RUN_CHARACTERS_MAX].rstrip("-.")
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": SNAPSHOT.name,
        "metadata": {"name": f"{begin}-{secrets.token_hex(3)}"},
        "spec": {**spec, **({"description": label} if label else {})},
    }


def row_of_object(found: Object) -> dict[str, Any]:
    """One snapshot as ``rollout snapshot list`` has it; what a manifest alone says is None.

    ``state`` is Saving, Complete or Failed.
    """
    run = dig(found, "status.run") or dig(found, "spec.source.run") or {}
    layers = {_kind(one["name"]): one["sizeBytes"] for one in dig(found, "status.layers") or ()}
    grade = dig(found, "status.grade")
    uri = dig(found, "status.location.object.uri") or ""
    ready = condition(found, "Ready")
    return {
        "id": (dig(found, "status.digest") or "").removeprefix(DIGEST) or None,
        "name": found["metadata"]["name"],
        "namespace": found["metadata"].get("namespace"),
        "state": _state(found),
        "reason": ready.get("message") or ready.get("reason"),
        "run": run.get("name"),
        "run_id": run.get("uid"),
        "lineage": dig(found, "status.lineage"),
        "step": dig(found, "status.step"),
        "grade": None if grade is None else grade.lower(),
        "label": dig(found, "spec.description") or "",
        "kinds": list(layers),
        "layer_bytes": layers,
        "created_at": dig(found, "metadata.creationTimestamp"),
        "size_bytes": dig(found, "status.sizeBytes"),
        "deletion_policy": dig(found, "spec.deletionPolicy") or "Retain",
        "schedule": (dig(found, "metadata.labels") or {}).get(LABEL_SCHEDULE),
        "place": uri.partition(MANIFESTS)[0] or None,
    }


def list_rows(
    found: Iterable[Object], *, run_id: str | None = None, kind: str | None = None
) -> list[dict[str, Any]]:
    """Newest first, of a run by its UID or name, that hold a layer."""
    rows = [row_of_object(one) for one in sorted(found, key=_age, reverse=True)]
    return [
        row
        for row in rows
        if (run_id is None or run_id in (row["run"], row["run_id"]))
        and (kind is None or kind in row["kinds"])
    ]


def find_object(found: Iterable[Object], given: str) -> Object:
    """A snapshot by the name of its object or by its id. Raises SnapshotRefused."""
    wanted = given.removeprefix(DIGEST)
    for one in found:
        if wanted in (one["metadata"]["name"], row_of_object(one)["id"]):
            return one
    raise SnapshotRefused(f"snapshot not found: {given}; see: rollout snapshot list --cluster")


def plan_prune(
    found: Iterable[Object], run_id: str, *, keep_last: int, keep_labeled: bool
) -> tuple[list[Object], int]:
    """What goes of a run's complete snapshots, oldest last, and how many stay.

    Those that a schedule has made are the schedule's to keep; those without an id, or on their way out, are left alone.
    """
    of_run = [
        one
        for one in sorted(found, key=_age, reverse=True)
        if (row := row_of_object(one))["id"] is not None
        and run_id in (row["run"], row["run_id"])
        and row["schedule"] is None
        and dig(one, "metadata.deletionTimestamp") is None
    ]
    old = of_run[keep_last:]
    going = [one for one in old if not (keep_labeled and row_of_object(one)["label"])]
    return going, len(of_run) - len(going)


def purged_bytes(going: Sequence[Object]) -> int:
    """Of those whose bytes go with their object; shared ones stay where others name them."""
    rows = map(row_of_object, going)
    return sum(row["size_bytes"] or 0 for row in rows if row["deletion_policy"] == "Delete")


def _state(found: Object) -> str:
    for kind in ("Failed", "Complete"):
        if condition(found, kind).get("status") == "True":
            return kind
    return "Saving"


def _kind(layer: str) -> str:
    """``train_state`` of ``TrainState``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer).lower()


def _age(found: Object) -> tuple[float, str]:
    made = dig(found, "metadata.creationTimestamp")
    return (0.0 if made is None else parse_time(made).timestamp(), found["metadata"]["name"])
