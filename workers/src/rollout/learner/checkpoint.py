"""Anchors: the whole train state as content-addressed objects under one manifest, written last.

An anchor is complete or does not exist: objects are durable before the manifest names them, and the
manifest appears by one atomic rename. Restoring on the same topology and runtime continues bit for bit;
on another the state is the same and the numerics may differ, which the caller must grade as logical.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from rollout.errors import RunFailed
from rollout.learner.model import randomness
from rollout.learner.model.offload import OffloadedOptimizer
from rollout.learner.model.parallel import local_part, shard_like, whole
from rollout.learner.model.policy import Policy
from rollout.learner.train_step import Trainer
from rollout.ledger.records import ANCHOR_FORMAT
from rollout.objects.bulk import keep_each
from rollout.objects.filesystem import make_folder, write_atomically
from rollout.protocol.messages import AnchorManifest, Cursor
from rollout.seams import ObjectSource, ObjectStore
from rollout.types import WeightVersion
from rollout.weights.host import read_named
from rollout.weights.safetensors import safetensors_parts
from rollout.weights.staging import Groups

WEIGHTS, CRITIC = "weights", "critic"
OPTIMIZERS = {WEIGHTS: "optimizer", CRITIC: "critic-optimizer"}
"""Objects of parameters, and that of each one's optimizer."""

KL_COEFFICIENT = "klCoefficient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the learner stands: the last step it has taken and that step's version and chain value."""

    lineage: int
    step: int
    chain: str
    version: WeightVersion
    cursor: Cursor
    grade: str = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPlace:
    """Where anchors go: the object store, and the folder of manifests."""

    store: ObjectStore
    snapshots_dir: Path


def state_tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What of this rank's state the weight version does not hold already, as it lies (shards stay shards).

    Optimizer entries by name, the masters where they are not what is served, all of a critic, and the
    KL coefficient.
    """
    policy, critic = trainer.policy, trainer.critic
    masters = {} if policy.serves_masters else policy.masters
    found = {**masters, **dict(_entries(policy, trainer.optimizer))}
    if critic is not None:
        theirs = {**critic.held.masters, **dict(_entries(critic.held, critic.optimizer))}
        found |= {f"{CRITIC}/{name}": tensor for name, tensor in theirs.items()}
    if trainer.control is not None:
        found["kl/coefficient"] = trainer.control.state()
    return {name: local_part(tensor) for name, tensor in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedState:
    """A moment's whole state on rank 0: ``tensors`` by the object that holds them; ``manifest`` does not name these yet.

    Tensors that are the trainer's own are written before the next step.
    """

    tensors: Groups
    random_states: bytes
    manifest: AnchorManifest


def capture(
    trainer: Trainer,
    progress: Progress,
    tensors: Groups,
    *,
    identity: Mapping[str, str],
    created_at: float,
) -> CapturedState:
    """The state of ``progress``, whose tensors are given; call on every rank."""
    parallel = trainer.policy.parallel
    states = parallel.gather(randomness.capture(parallel.device), bytes)
    manifest = AnchorManifest(
        name=name_anchor(progress.lineage, progress.step),
        lineage=progress.lineage,
        step=progress.step,
        chain=progress.chain,
        version=progress.version,
        objects={},
        grade=progress.grade,
        state=_extra(progress, identity, trainer),
        created_at=created_at,
    )
    return CapturedState(
        tensors=tensors, random_states=msgspec.msgpack.encode(states), manifest=manifest
    )


def write_anchor(place: AnchorPlace, captured: CapturedState) -> AnchorManifest:
    """Make what was captured durable, on rank 0, in any thread. Raises StoreError.

    The manifest is ``<snapshots_dir>/<name_anchor>.json``. ``Latest`` and ``Best`` are the coordinator's.
    """
    parts = {name: safetensors_parts(group) for name, group in captured.tensors.items()}
    objects = keep_each(place.store.keep, parts)
    objects["rng"] = place.store.put(captured.random_states)
    manifest = msgspec.structs.replace(captured.manifest, objects=objects)
    write_manifest(place.snapshots_dir, manifest)
    return manifest


def name_anchor(lineage: int, step: int) -> str:
    """``step-000123``; of a younger lineage ``step-000123-lineage-1``, beside that of the step it replaces."""
    return f"step-{step:06d}" + (f"-lineage-{lineage}" if lineage else "")


def write_manifest(snapshots_dir: Path, manifest: AnchorManifest) -> None:
    """Put ``<name>.json`` in place whole and durable. Raises StoreError."""
    make_folder(snapshots_dir)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    write_atomically(snapshots_dir / f"{manifest.name}.json", text + b"\n")


def restore_anchor(manifest: AnchorManifest, store: ObjectSource, trainer: Trainer) -> Progress:
    """Load an anchor into the trainer and the generators; call on every rank.

    Raises StoreError for a missing or damaged object, RunFailed for an anchor of another model, one
    that lacks what this algorithm needs (a critic), or a format that this version does not know.
    """
    if (found := manifest.state.get("format")) != ANCHOR_FORMAT:
        raise RunFailed(
            f"anchor {manifest.name} has format {found!r}, this version of rollout restores {ANCHOR_FORMAT}:"
            " go on with the version of rollout that saved it, or start a new run"
        )
    _restore_model(manifest, store, trainer.policy, trainer.optimizer, WEIGHTS)
    if trainer.critic is not None:
        _restore_model(manifest, store, trainer.critic.held, trainer.critic.optimizer, CRITIC)
    if trainer.control is not None:
        trainer.control.coefficient = _state_of(manifest, KL_COEFFICIENT)
    _restore_random(trainer.policy, store.path(manifest.objects["rng"]).read_bytes())
    return Progress(
        lineage=manifest.lineage,
        step=manifest.step,
        chain=manifest.chain,
        version=manifest.version,
        cursor=msgspec.convert(manifest.state["cursor"], Cursor),
        grade=manifest.grade,
    )


def state_groups(trainer: Trainer) -> dict[str, dict[str, torch.Tensor]]:
    """What an anchor holds, by the object that holds it, as it lies (shards stay shards)."""
    found = _groups_of(trainer.policy, trainer.optimizer, WEIGHTS)
    if trainer.critic is not None:
        found |= _groups_of(trainer.critic.held, trainer.critic.optimizer, CRITIC)
    return found


def whole_groups(groups: Groups) -> dict[str, dict[str, torch.Tensor]]:
    """The same tensors, whole. With shards a collective."""
    return {
        name: {key: whole(tensor) for key, tensor in group.items()}
        for name, group in groups.items()
    }


def copy_groups(groups: Groups, copies: Groups) -> None:
    """Copy tensors to the host, whole, each before the next is gathered. With shards a collective.

    Ranks that keep nothing have no ``copies`` of a group.
    """
    for name, group in groups.items():
        for key, tensor in group.items():
            gathered = whole(tensor)
            if name in copies:
                copies[name][key].copy_(gathered, non_blocking=True)
    for device in {one.device for group in groups.values() for one in group.values()}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _groups_of(held: Policy, optimizer: Optimizer, name: str) -> dict[str, dict[str, torch.Tensor]]:
    masters = {key: parameter.detach() for key, parameter in held.masters.items()}
    return {name: masters, OPTIMIZERS[name]: dict(_entries(held, optimizer))}


def _restore_model(
    manifest: AnchorManifest, store: ObjectSource, held: Policy, optimizer: Optimizer, name: str
) -> None:
    """Parameters from the object ``name``, and their optimizer's entries from its own."""
    shared = held.parallel.world_size > 1
    for wanted in (name, OPTIMIZERS[name]):
        if wanted not in manifest.objects:
            raise _lacks(manifest, wanted)
    try:
        held.load_masters(load_object(store, manifest.objects[name], shared=shared))
    except ValueError as error:
        what = "model" if name == WEIGHTS else name
        raise RunFailed(f"anchor {manifest.name} is not of this run's {what}: {error}") from error
    entries = load_object(store, manifest.objects[OPTIMIZERS[name]], shared=shared)
    load_optimizer(held, optimizer, entries)


def load_object(
    store: ObjectSource, digest: str, *, shared: bool = False
) -> dict[str, torch.Tensor]:
    """The tensors of an object, verified. Raises StoreError.

    ``shared``: in memory that all processes which read it share; else it is read and verified at the same time.
    """
    if not shared:
        with suppress(OSError, ValueError):  # what is wrong with it, the store says
            tensors, found = read_named(store.locate(digest))
            if found == digest:
                return tensors
    return load_file(store.path(digest))


def _state_of(manifest: AnchorManifest, name: str) -> Any:
    if name not in manifest.state:
        raise _lacks(manifest, name)
    return manifest.state[name]


def _lacks(manifest: AnchorManifest, what: str) -> RunFailed:
    return RunFailed(
        f"anchor {manifest.name} has no {what}, which this run's algorithm needs: it was saved by a run"
        " of another algorithm or its manifest was changed; restore the manifest, or start a new run"
    )


def load_optimizer(
    policy: Policy, optimizer: Optimizer, entries: Mapping[str, torch.Tensor]
) -> None:
    """Replace the optimizer's whole state by ``<parameter>/<entry>`` tensors."""
    found = _by_parameter(policy, optimizer, entries)
    if isinstance(optimizer, OffloadedOptimizer):
        optimizer.load((parameter, states) for _, parameter, states in found)
        return
    state = {index: states for index, _, states in found}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _by_parameter(
    policy: Policy, optimizer: Optimizer, entries: Mapping[str, torch.Tensor]
) -> Iterator[tuple[int, nn.Parameter, dict[str, torch.Tensor]]]:
    """Each parameter that has entries, its place in the optimizer, and this rank's part of them."""
    names = {id(p): name for name, p in policy.masters.items()}
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(ordered):
        prefix = f"{names[id(parameter)]}/"
        states = {
            key.removeprefix(prefix): shard_like(value, parameter)
            for key, value in entries.items()
            if key.startswith(prefix)
        }
        if states:
            yield index, parameter, states


def _entries(policy: Policy, optimizer: Optimizer) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{name}/{entry}", value)
        for name, parameter in policy.masters.items()
        for entry, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor)
    ]


def _extra(progress: Progress, identity: Mapping[str, str], trainer: Trainer) -> dict[str, Any]:
    cursor = msgspec.to_builtins(progress.cursor)
    control = trainer.control
    kl = {} if control is None else {KL_COEFFICIENT: control.coefficient}
    return {"format": ANCHOR_FORMAT, "identity": dict(identity), "cursor": cursor, **kl}


def _restore_random(policy: Policy, data: bytes) -> None:
    states = msgspec.msgpack.decode(data)
    rank = policy.parallel.rank
    if rank < len(states):
        randomness.restore(states[rank], policy.parallel.device)
