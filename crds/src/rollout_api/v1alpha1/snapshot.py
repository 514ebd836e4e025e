"""RolloutSnapshot: one snapshot of a run, as an object: asked for by a person, a schedule or a run."""

from typing import ClassVar, Literal

from pydantic import Field

from rollout_api.base import ApiModel, Digest, Label, Name, OneOf, Rule, Timestamp, Uri, many
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.meta import Meta
from rollout_api.v1alpha1.operations import Layer
from rollout_api.v1alpha1.run_status import Grade
from rollout_api.v1alpha1.storage import SnapshotObject


class RunSource(ApiModel):
    """Take a snapshot of a run at its next step boundary."""

    name: Label
    """Name of the RolloutRun in the same namespace."""
    include: tuple[Layer, ...] = many(4)
    """What is saved beside the train state. Unset: as the run's `snapshots.include`."""


class SnapshotSpec(OneOf):
    """What is wanted; immutable but for its labels and `deletionPolicy`."""

    members: ClassVar[tuple[str, ...]] = ("run", "object")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.run) == has(oldSelf.run) && (!has(self.run) || self.run == oldSelf.run)",
            "run is immutable: make another snapshot",
            "run",
        ),
        Rule(
            "has(self.object) == has(oldSelf.object)"
            " && (!has(self.object) || self.object == oldSelf.object)",
            "object is immutable: make another snapshot",
            "object",
        ),
    )

    run: RunSource | None = None
    """Make one of a run."""
    object: SnapshotObject | None = None
    """Give an existing one a name in the cluster."""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """What becomes of the bytes when this object is deleted."""
    description: Name | None = None
    """Why it was made."""


class LayerStatus(ApiModel):
    """One part of a snapshot."""

    name: Layer
    """Which part."""
    digest: Digest
    """Digest of its bytes."""
    size_bytes: int = Field(ge=0)
    """Size of its bytes, shared ones included."""
    grade: Grade
    """What continuing from it may claim."""


class SnapshotStatus(ApiModel):
    """What is."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """`Ready` is True when the manifest is durable and verified."""
    step: int | None = Field(default=None, ge=0)
    """Step it holds."""
    lineage: int | None = Field(default=None, ge=0)
    """Lineage of that step."""
    run_uid: Name | None = None
    """UID of the run it was made of."""
    uri: Uri | None = None
    """Location of the manifest."""
    digest: Digest | None = None
    """Digest of the manifest."""
    size_bytes: int | None = Field(default=None, ge=0)
    """Size of all parts."""
    grade: Grade | None = None
    """The lowest grade of its parts."""
    layers: tuple[LayerStatus, ...] = many(4, key="name")
    """Its parts."""
    completion_time: Timestamp | None = None
    """When the manifest became durable."""


class RolloutSnapshot(ApiModel):
    """A snapshot of a whole run: weights, optimizer, data cursor. Stored, and not acted on by this version."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutSnapshot"] = "RolloutSnapshot"
    """Kind of the object."""
    metadata: Meta
    """Name, namespace, labels."""
    spec: SnapshotSpec
    """What is wanted."""
    status: SnapshotStatus | None = None
    """What is."""
