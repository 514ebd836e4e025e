"""One object of our kinds, as the operator keeps it: compact bytes, parsed when they are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rollout_api.checks.sizes import find_excess
from rollout_api.fields import tracked
from rollout_api.names import (
    LABEL_PRIORITY,
    LABEL_QUEUE,
    LABEL_RUN_UID,
    LABEL_SCHEDULE,
    LABEL_SWEEP_OUTCOME,
    LABEL_SWEEP_SUSPENDED,
)
from rollout_operator.cache.facts import Document, Facts, References, read_facts
from rollout_operator.controller.queue import Key

LABELS_KEPT = frozenset(
    {
        LABEL_QUEUE,
        LABEL_PRIORITY,
        LABEL_RUN_UID,
        LABEL_SCHEDULE,
        LABEL_SWEEP_OUTCOME,
        LABEL_SWEEP_SUSPENDED,
        *tracked.LABELS,
    }
)
MARK_LENGTH_MAX = 256
KEPT_BYTES_MAX = 96 * 1024
"""Of a spec as it is written. What is larger is refused whatever it says (the bound on what it comes to is
lower), and is not kept: hundreds of the size that etcd takes would fill our memory."""
UNBOUNDED = frozenset({"RolloutRuntime", "ClusterRolloutRuntime"})
"""Kinds that administrators write."""
STUB = ("managedBy", "suspend", "runtimeRef")
"""Fields of a spec that is not kept which say whether anybody may look at it at all."""
META_KEPT = (
    "name",
    "namespace",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
)
ANNOTATIONS_KEPT = frozenset(tracked.ANNOTATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object of our kinds; ``spec`` and ``status`` are JSON, parsed when they are needed.

    ``facts`` are of kinds that are looked up by them. ``excess`` says what is too large about a spec that is not kept.
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
    excess: str = ""

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


def parse_stored(kind: str, live: Document, references: References | None = None) -> Stored:
    """An object of ours, compact; with facts when it is known what its kind refers to."""
    meta = live["metadata"]
    kept = {name: meta[name] for name in META_KEPT if name in meta}
    kept |= _marks("annotations", meta, ANNOTATIONS_KEPT) | _marks("labels", meta, LABELS_KEPT)
    status = live.get("status") or {}
    spec, packed, excess = _bound(kind, live.get("spec") or {})
    return Stored(
        key=key_of(kind, meta),
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        meta=_pack(kept),
        spec=packed,
        status=_pack(status),
        facts=read_facts(meta, spec, status, references) if references else Facts(),
        excess=excess,
    )


def _bound(kind: str, spec: Document) -> tuple[Document, bytes, str]:
    """A spec and its bytes, or what is left of one that is too large, and why."""
    packed = _pack(spec)
    if len(packed) <= KEPT_BYTES_MAX or kind in UNBOUNDED:
        return spec, packed, ""
    stub = {name: spec[name] for name in STUB if name in spec}
    return stub, _pack(stub), str(find_excess(spec))


def _marks(part: str, meta: Document, wanted: frozenset[str]) -> dict[str, Any]:
    """The labels or annotations that are read, none of them long."""
    there = meta.get(part) or {}
    found = {key: str(there[key])[:MARK_LENGTH_MAX] for key in wanted & there.keys()}
    return {part: found} if found else {}


def key_of(kind: str, meta: Document) -> Key:
    """The place of an object of ours."""
    return Key(namespace=meta.get("namespace", ""), name=meta["name"], kind=kind)


def _pack(document: Any) -> bytes:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="surrogatepass")
