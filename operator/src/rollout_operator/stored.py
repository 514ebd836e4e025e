"""One object of our kinds, as the operator keeps it: compact bytes, parsed when they are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rollout_api import tracked
from rollout_operator.facts import Document, Facts, read_facts
from rollout_operator.keys import Key

META_KEPT = ("name", "namespace", "uid", "generation", "labels", "creationTimestamp")
ANNOTATIONS_KEPT = frozenset(tracked.ANNOTATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object of our kinds; ``spec`` and ``status`` are JSON, parsed when they are needed.

    ``facts`` are of runs alone.
    """

    key: Key
    uid: str
    version: int
    generation: int
    deleting: bool
    meta: bytes
    spec: bytes
    status: bytes
    facts: Facts

    def document(self) -> dict[str, Any]:
        """The object as it came, without what only the API server needs."""
        return {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": self.key.kind,
            "metadata": json.loads(self.meta),
            "spec": json.loads(self.spec),
        }

    def labels(self) -> dict[str, str]:
        """The object's labels."""
        return json.loads(self.meta).get("labels") or {}

    def tracker(self) -> str:
        """Who would make the object again if it were deleted; empty when nobody would."""
        meta = json.loads(self.meta)
        return tracked.find_tracker(meta.get("labels") or {}, meta.get("annotations") or {})

    def read_status(self) -> dict[str, Any]:
        """The status; empty when there is none yet."""
        return json.loads(self.status)


def parse_stored(kind: str, live: Document) -> Stored:
    """An object of ours, compact."""
    meta = live["metadata"]
    kept = {name: meta[name] for name in META_KEPT if name in meta}
    annotations = meta.get("annotations") or {}
    if marks := {key: annotations[key] for key in ANNOTATIONS_KEPT & annotations.keys()}:
        kept["annotations"] = marks
    spec, status = live.get("spec") or {}, live.get("status") or {}
    return Stored(
        key=key_of(kind, meta),
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        meta=_pack(kept),
        spec=_pack(spec),
        status=_pack(status),
        facts=read_facts(spec, status) if kind == "RolloutRun" else Facts(),
    )


def key_of(kind: str, meta: Document) -> Key:
    """The place of an object of ours."""
    return Key(namespace=meta.get("namespace", ""), name=meta["name"], kind=kind)


def _pack(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
