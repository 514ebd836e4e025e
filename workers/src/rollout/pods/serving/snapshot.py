"""The model in a snapshot, as a folder: its weights, with the configuration and tokenizer of the model that its run began with.

A snapshot names that model by digest and does not hold it. Signature, namespace and every object are verified as they are
for a run that begins with the snapshot; the tensors once more, when they are whole. Adapters and reward models are refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rollout.errors import SnapshotRefused, StoreError
from rollout.models.files import ModelFiles
from rollout.objects.opening import open_place
from rollout.objects.places import open_named
from rollout.runs.pipeline import materialise_model
from rollout.runs.snapshots.adopting import require_of_namespace
from rollout.snapshots.layers.registry import TRAIN_STATE
from rollout.snapshots.manifest import Manifest, RunFacts
from rollout.snapshots.place import find_manifest
from rollout.weights.mirror import WeightFiles
from rollout.weights.numbers import read_tensors
from rollout.weights.shards import combine_raw, digest_file
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import AdoptOrder

OBJECTS_SIZE_MAX = "8Ti"
SCORERS = frozenset({"rm"})
"""Algorithms whose models answer with a number."""


def unfold_snapshot(order: AdoptOrder, base: ModelFiles, scratch: Path, target: Path) -> Path:
    """The folder ``target``; one that is there was made by this pod, and is taken. ``scratch`` is removed at the end.

    Raises SnapshotRefused, StoreError.
    """
    named = open_named(order.place, endpoint=order.endpoint, region=order.region)
    manifest = find_manifest(named, order.snapshot)
    require_of_namespace(manifest, order, order.namespace)
    run = manifest.header.run
    _require_servable(manifest, run)
    _require_base(manifest, run, base)
    try:
        return materialise_model(
            config_path=base.path,
            weights=_fetch(order, manifest, scratch),
            target=target,
            chat_template=run.identity.get("model", {}).get("chatTemplate"),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require_servable(manifest: Manifest, run: RunFacts) -> None:
    if run.identity.get("model", {}).get("lora") is not None:
        raise SnapshotRefused(
            f"snapshot {manifest.id} holds an adapter: serve what its run has handed on (model.fromRun), which is merged"
        )
    if run.algorithm.lower() in SCORERS:
        raise SnapshotRefused(f"snapshot {manifest.id} holds a reward model, which answers nobody")


def _require_base(manifest: Manifest, run: RunFacts, base: ModelFiles) -> None:
    wanted = run.contents.get("spec.model")
    if base.digest != wanted:
        raise SnapshotRefused(
            f"snapshot {manifest.id}: spec.model.baseURI: expected the model that run {run.name} began with, {wanted}, got"
            f" {base.digest} at {base.uri}"
        )


def _fetch(order: AdoptOrder, manifest: Manifest, scratch: Path) -> Path:
    state = manifest.layer("train_state")
    if state is None:
        held = ", ".join(layer.kind for layer in manifest.layers)
        raise SnapshotRefused(f"snapshot {manifest.id} holds {held}, and no weights")
    root, _, uid = order.place.rpartition("/")
    storage = Storage(
        uri=root, endpoint=order.endpoint, region=order.region, cache_size=OBJECTS_SIZE_MAX
    )
    store = open_place(storage, uid, scratch / "objects")
    version = TRAIN_STATE.read(state, store).version
    (scratch / "mirror").mkdir(parents=True, exist_ok=True)
    return check_weights(
        WeightFiles(store, scratch / "mirror").path(version.object), version.step, version.digest
    )


def check_weights(weights: Path, step: int, digest: str) -> Path:
    """What deltas came to is held against the digest that the learner gave. Raises StoreError."""
    found = combine_raw(digest_file(weights, read_tensors(weights)))
    if found != digest:
        raise StoreError(f"weights of step {step}: expected {digest}, got {found}")
    return weights
