"""What the operator, or whoever supervises a local run, says to the coordinator."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollout.protocol.messages.base import WireMessage


class Stop(WireMessage, frozen=True, kw_only=True):
    """End the run early; workers save what they have. The run can be resumed.

    ``attempt``: the run attempt that is meant; another one's coordinator refuses (StaleSettings). None: whichever hears it.
    """

    reason: str
    attempt: int | None = None


class Settings(WireMessage, frozen=True, kw_only=True):
    """Live settings of one generation of the run's object; ``live`` is a ``rollout_api.fields.live.LiveSettings``.

    An older generation than the last is refused (StaleSettings).
    """

    generation: int
    live: dict[str, Any] = msgspec.field(default_factory=dict)


class SettingsTaken(WireMessage, frozen=True, kw_only=True):
    """``deferred`` says what takes effect with the next run attempt only, and why."""

    generation: int
    deferred: tuple[str, ...] = ()


class SnapshotOrder(WireMessage, frozen=True, kw_only=True):
    """Take a snapshot for an object of the cluster, or say how far it is; asked again and again until it is over.

    ``snapshot`` is the UID of that object, ``name`` its name, ``step`` that of the anchor that is meant (None: the newest). ``id`` with ``signer`` and ``signature`` (hex) vouches for the
    snapshot of that id, which the answer before has told.
    """

    snapshot: str
    name: str
    step: int | None = None
    id: str = ""
    signer: str = ""
    signature: str = ""


class LayerTaken(WireMessage, frozen=True, kw_only=True):
    """One layer: its kind, Merkle root (64 hex), bytes, and what continuing from it may claim."""

    kind: str
    digest: str
    size_bytes: int
    grade: str


class SnapshotState(WireMessage, frozen=True, kw_only=True):
    """How far a snapshot is.

    ``Waiting``: the run has no anchor yet. ``Unsigned``: its objects are durable, and ``id`` is to be signed. ``Taken``: the
    manifest is durable. ``Failed``: ``message`` says why; the next order tries again.
    """

    state: Literal["Waiting", "Saving", "Unsigned", "Taken", "Failed"]
    id: str = ""
    step: int = 0
    lineage: int = 0
    grade: str = ""
    size_bytes: int = 0
    layers: tuple[LayerTaken, ...] = ()
    message: str = ""
