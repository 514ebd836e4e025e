"""What the operator, or whoever supervises a local run, says to the coordinator."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollout.protocol.messages.base import WireMessage


class Stop(WireMessage, frozen=True, kw_only=True):
    """End the run early; workers save what they have. The run can be resumed."""

    reason: str
    """Shown to people."""
    attempt: int | None = None
    """The run attempt that is meant; another one's coordinator refuses (StaleSettings). None: whichever hears it."""


class Settings(WireMessage, frozen=True, kw_only=True):
    """Live settings of the run's object. An older generation than the last is refused (StaleSettings)."""

    generation: int
    """``metadata.generation`` that they are of."""
    live: dict[str, Any] = msgspec.field(default_factory=dict)
    """A ``rollout_api.fields.live.LiveSettings`` as JSON."""


class SettingsTaken(WireMessage, frozen=True, kw_only=True):
    """The settings are in force and durable."""

    generation: int
    """Of the settings."""
    deferred: tuple[str, ...] = ()
    """What takes effect with the next run attempt only, and why."""


class SnapshotOrder(WireMessage, frozen=True, kw_only=True):
    """Take a snapshot for an object of the cluster, or say how far it is; asked again and again until it is over."""

    snapshot: str
    """UID of that object."""
    name: str
    """Its name."""
    step: int | None = None
    """Of the anchor that is meant; None: the newest."""
    id: str = ""
    """Snapshot that is vouched for, which the answer before has told; empty: none yet."""
    signer: str = ""
    """Key that has signed it."""
    signature: str = ""
    """Hex."""


class LayerTaken(WireMessage, frozen=True, kw_only=True):
    """One layer of a snapshot."""

    kind: str
    """What it holds (``LayerKind``)."""
    digest: str
    """Merkle root, 64 hex."""
    size_bytes: int
    """Of the whole layer."""
    grade: str
    """What continuing from it may claim."""


class SnapshotState(WireMessage, frozen=True, kw_only=True):
    """How far a snapshot is."""

    state: Literal["Waiting", "Saving", "Unsigned", "Taken", "Failed"]
    """``Waiting``: the run has no anchor yet. ``Unsigned``: its objects are durable, and ``id`` is to be signed.
    ``Taken``: the manifest is durable. ``Failed``: the next order tries again."""
    id: str = ""
    """Of the snapshot; empty until its objects are durable."""
    step: int = 0
    """Of its anchor."""
    lineage: int = 0
    """Of its anchor."""
    grade: str = ""
    """What continuing from it may claim."""
    size_bytes: int = 0
    """Of all layers."""
    layers: tuple[LayerTaken, ...] = ()
    """Empty until its objects are durable."""
    message: str = ""
    """Why it failed, or what is waited for."""
