"""Snapshots that an operator orders of a live run: taken beside its work, by the process that holds its ledger.

The operator's key signs them and stays where it is: a snapshot whose objects are durable waits for the signature of its
id, and its manifest is committed with it. Nothing is remembered but in memory: of a coordinator that comes back the next
order begins anew, unless the snapshot was committed, which its label tells. An order is answered at once; few are
taken at a time, and what is over is forgotten after a while.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rollout.errors import NoAnchorYet, RolloutError, SnapshotRefused
from rollout.objects.opening import open_names, open_store
from rollout.protocol import messages as m
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import KnownPlace
from rollout.snapshots.manifest import Manifest, Signature
from rollout.snapshots.place import list_manifests
from rollout.snapshots.signing import Signs, check_signature
from rollout_api.worker import WorkerConfig

log = logging.getLogger(__name__)

AT_ONCE_MAX = 2
"""Each reads its objects whole; the others are told to come again."""
KEPT_MAX = 64
SIGNATURE_SECONDS = 300.0
"""How long the objects of a snapshot are kept for one that its operator does not sign."""
LABEL_NAME_MAX = 40

Take = Callable[[str, Signs, int | None], Manifest]
"""From a label, who signs, and the step that is meant, to a snapshot that is durable. Raises RolloutError."""
FindTaken = Callable[[str], Manifest | None]
"""The snapshot that has this label already. Raises RolloutError."""


def label_of(ask: m.SnapshotOrder) -> str:
    """What a snapshot says of its object: its name, for people, and its UID, by which it is found again."""
    return f"{ask.name[:LABEL_NAME_MAX]} {ask.snapshot}"


@dataclass(slots=True, kw_only=True)
class _Order:
    """One snapshot under way; ``signed`` is set when ``signature`` is there."""

    state: m.SnapshotState = field(default_factory=lambda: m.SnapshotState(state="Saving"))
    signature: Signature | None = None
    signed: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        return self.state.state not in ("Saving", "Unsigned")

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest, once the operator has vouched for it. Raises SnapshotRefused where it does not in time."""
        self.state = describe(manifest, "Unsigned")
        if not self.signed.wait(SIGNATURE_SECONDS):
            raise SnapshotRefused(
                f"snapshot {manifest.id} was not signed in {SIGNATURE_SECONDS:.0f} s"
            )
        signed = msgspec.structs.replace(manifest, signature=self.signature)
        check_signature(signed)
        self.state = describe(manifest, "Saving")
        return signed

    def take_signature(self, ask: m.SnapshotOrder) -> None:
        """A signature of another id is of an order before this one."""
        if self.state.state == "Unsigned" and ask.signature and ask.id == self.state.id:
            self.signature = Signature(signer=ask.signer, value=ask.signature)
            self.signed.set()


@dataclass(slots=True, kw_only=True)
class OrderedSnapshots:
    """The snapshots that were ordered of one run, by the UID of their objects."""

    take: Take
    find: FindTaken
    _orders: OrderedDict[str, _Order] = field(default_factory=OrderedDict)

    def answer(self, ask: m.SnapshotOrder) -> m.SnapshotState:
        """How far it is. The first order begins it, and so does the one after a failure was told."""
        order = self._orders.get(ask.snapshot)
        if order is None:
            return self._begin(ask)
        order.take_signature(ask)
        if order.state.state in ("Failed", "Waiting"):
            del self._orders[ask.snapshot]
        return order.state

    def _begin(self, ask: m.SnapshotOrder) -> m.SnapshotState:
        if sum(not one.is_over for one in self._orders.values()) >= AT_ONCE_MAX:
            return m.SnapshotState(state="Saving", message="waits for other snapshots of this run")
        for over in [uid for uid, one in self._orders.items() if one.is_over]:
            if len(self._orders) >= KEPT_MAX:
                del self._orders[over]
        order = self._orders[ask.snapshot] = _Order()
        threading.Thread(
            target=self._work, args=(order, label_of(ask), ask.step), name="snapshot", daemon=True
        ).start()
        return order.state

    def _work(self, order: _Order, label: str, step: int | None) -> None:
        try:
            manifest = self.find(label) or self.take(label, order, step)
        except NoAnchorYet as error:
            order.state = m.SnapshotState(state="Waiting", message=str(error))
        except (RolloutError, OSError) as error:
            log.warning("no snapshot label=%s error=%s", label, error)
            order.state = m.SnapshotState(
                state="Failed", message=f"{type(error).__name__}: {error}"
            )
        except Exception as error:
            # The outermost loop of this thread: a bug of ours is told, not hidden.
            log.exception("bug while a snapshot was taken label=%s", label)
            order.state = m.SnapshotState(state="Failed", message=f"internal error: {error!r}")
        else:
            log.info(
                "snapshot taken id=%s step=%d label=%s", manifest.id, manifest.header.step, label
            )
            order.state = describe(manifest, "Taken")


def open_ordered(config: WorkerConfig) -> OrderedSnapshots | None:
    """Of the run of this process; None for one that trains nothing. Raises StoreError, SpecError."""
    if config.spec.train is None:
        return None
    run = RunDir(path=Path(config.layout.run_dir))
    store = open_store(config, "coordinator")
    place = KnownPlace(
        where=config.layout.objects_uri or str(run.objects),
        uid=config.run.uid,
        named=open_names(config),
        source=store,
        open_store=lambda: store,
        run=run,
    )

    def take(label: str, signer: Signs, step: int | None) -> Manifest:
        return create_snapshot(run, signer, step=step, label=label, place=place).manifest

    def find(label: str) -> Manifest | None:
        taken = (one for one in list_manifests(place.named) if isinstance(one, Manifest))
        return next((one for one in taken if one.header.label == label), None)

    return OrderedSnapshots(take=take, find=find)


def describe(manifest: Manifest, state: str) -> m.SnapshotState:
    """What an operator is told of a snapshot."""
    header = manifest.header
    layers = tuple(
        m.LayerTaken(
            kind=layer.kind, digest=layer.digest, size_bytes=layer.size_bytes, grade=layer.grade
        )
        for layer in manifest.layers
    )
    return msgspec.convert(
        {
            "state": state,
            "id": manifest.id,
            "step": header.step,
            "lineage": header.lineage,
            "grade": header.grade,
            "size_bytes": manifest.size_bytes,
            "layers": layers,
        },
        m.SnapshotState,
    )
