"""A small run without a learner: a real ledger, real objects, and snapshots of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec
from ledger_kit import IDENTITY, Clock, claim_request, finished, started, step_commit

from rollout.ledger.records import AnchorManifest, Limits
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.folder import FolderObjects
from rollout.snapshots.layers.contract import Moment
from rollout.snapshots.layers.registry import LAYERS
from rollout.snapshots.manifest import Manifest, RunFacts, SnapshotHeader
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import Signer
from rollout.types import WeightVersion

GROUPS = 2


def safetensors(**tensors: bytes) -> bytes:
    """A file of bytes as tensors, as safetensors writes them."""
    header, start = {}, 0
    for name, data in tensors.items():
        stop = start + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def open_at(folder: Path) -> SnapshotPlace:
    return SnapshotPlace(store=FilesystemStore(folder), named=FolderObjects(folder))


def save_state(store, step: int, lineage: int = 0) -> AnchorManifest:
    """An anchor of made-up weights, whose objects are stored."""
    weights = store.put(safetensors(first=b"w%d" % step * 50, second=b"v" * 40))
    optimizer = store.put(safetensors(moments=b"m%d" % step * 30))
    base = store.put(safetensors(base=b"b" * 60))
    version = WeightVersion(
        lineage=lineage, step=step, digest=f"blake3:{step:064x}", object=weights, bases=(base,)
    )
    return AnchorManifest(
        name=f"step-{step:06d}",
        lineage=lineage,
        step=step,
        chain=f"chain-{lineage}-{step}",
        version=version,
        objects={"weights": weights, "optimizer": optimizer, "rng": store.put(b"rng%d" % step)},
        state={"format": 1, "identity": {"torch": "x"}, "cursor": {}},
        created_at=1000.0 + step,
    )


async def make_run(folder: Path, *, steps: int = 4, anchors: tuple[int, ...] = (2, 4)) -> None:
    """Steps of two groups, one finished group that waits, one that is leased; anchors at some steps."""
    store = FilesystemStore(folder / "objects")
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, Limits(), Clock())
    learner, actor = await started(ledger, 0)
    for step in range(1, steps + 2):
        await admit(ledger, step)
        leases = (await ledger.claim(claim_request("actor-0", actor, step=step - 1))).leases
        done = leases if step <= steps else leases[:1]
        await ledger.submit("actor-0", actor, [finished(lease) for lease in done])
        if step <= steps:
            await ledger.commit(step_commit(step, ordinals(step), learner))
            if step in anchors:
                await ledger.save_anchor(learner, save_state(store, step))
    await ledger.close()


async def admit(ledger, step: int) -> None:
    from ledger_kit import admission

    first = ordinals(step)
    await ledger.admit(admission(first.start, first.stop))


def ordinals(step: int) -> range:
    return range(GROUPS * (step - 1), GROUPS * step)


def header_of(anchor: AnchorManifest, label: str = "") -> SnapshotHeader:
    return SnapshotHeader(
        created_at=anchor.created_at,
        label=label,
        run=RunFacts(
            name="small",
            namespace="default",
            uid=IDENTITY.uid,
            algorithm="grpo",
            spec_digest=IDENTITY.spec_digest,
            identity_format=2,
            identity={"format": 2, "seed": 1},
            contents={"spec.model": "blake3:" + "1" * 64},
            dtype="Float32",
            threads=1,
        ),
        lineage=anchor.lineage,
        step=anchor.step,
        chain=anchor.chain,
        grade="exact",
        runtime={"torch": "x"},
    )


def take(folder: Path, step: int | None = None):
    """Anchor and layers of a run's newest anchor, or of that of a step."""
    with LedgerReader(folder / "ledger.db") as ledger:
        anchor, cut = ledger.cut(
            lambda found: next(a for a in reversed(found) if step in {None, a.step})
        )
    source = FilesystemStore(folder / "objects")
    moment = Moment(anchor=anchor, cut=cut, grade="exact", source=source)
    return anchor, [layer.take(moment) for layer in LAYERS]


def snapshot(folder: Path, signer: Signer, step: int | None = None, label: str = "") -> Manifest:
    anchor, taken = take(folder, step)
    return save_snapshot(open_at(folder / "objects"), header_of(anchor, label), taken, signer)


def changed(manifest: Manifest, **changes) -> Manifest:
    return msgspec.structs.replace(manifest, **changes)
