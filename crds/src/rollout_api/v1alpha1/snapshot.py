"""RolloutSnapshot: one snapshot of a run, as an object: asked for by a person, a schedule or a run."""

from typing import ClassVar, Literal

from pydantic import Field

from rollout_api.base import (
    ApiModel,
    Digest,
    Label,
    Name,
    ObjectName,
    OneOf,
    Rule,
    Text,
    Timestamp,
    Uri,
    many,
)
from rollout_api.v1alpha1.common import Condition, RuntimeRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.objects.meta import Meta
from rollout_api.v1alpha1.operations import Layer
from rollout_api.v1alpha1.run_status import Grade
from rollout_api.v1alpha1.storage import PostgresSecretRef, SnapshotObject, Storage


def _settled(field: str) -> Rule:
    same = (
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )
    return Rule(same, f"{field} is immutable: make another snapshot", field)


class StorageRef(ApiModel):
    """Names one of the runtime's storages."""

    name: Label
    """Its name in the runtime's `storages`."""


class RunSource(ApiModel):
    """A run at work, as of one of its anchors: the newest is at most `snapshots.everySteps` steps old."""

    name: Label
    """Name of the RolloutRun in the same namespace."""
    uid: Name | None = None
    """UID of that run: another one of the same name is not meant. Unset: whichever has the name when this is made."""
    step: int | None = Field(default=None, ge=1, le=10_000_000)
    """Step of the anchor that is saved, which the run must still keep. Unset: the newest."""


class SnapshotSource(OneOf):
    """What a snapshot is taken of, or where it already lies."""

    run: RunSource | None = None
    """Make one of a run."""
    existing: SnapshotObject | None = None
    """Give one that is there already a name in the cluster: verified, and then used as `snapshotRef`. Its place is one of this namespace's, or named by the runtime's `allowed.storage`; its signer is the installation, or one of the runtime's `trustedSigners`."""


class SnapshotSpec(ApiModel):
    """What is wanted; immutable but for `deletionPolicy` and `description`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.source == oldSelf.source", "source is immutable: make another snapshot", "source"
        ),
        _settled("include"),
        _settled("storageRef"),
        _settled("deadlineSeconds"),
        _settled("runtimeRef"),
        Rule(
            "!has(self.source.existing) || (!has(self.include) || self.include.size() == 0)",
            "a snapshot that exists has the layers that it has: leave include out",
            "include",
        ),
        Rule(
            "!has(self.source.existing) || !has(self.storageRef)",
            "a snapshot that exists lies where its uri says: leave storageRef out",
            "storageRef",
        ),
        Rule(
            "!has(self.runtimeRef) || has(self.source.existing)",
            "a snapshot of a run is reached by its run's runtime: leave runtimeRef out",
            "runtimeRef",
        ),
        Rule(
            "!has(self.source.existing) || !has(self.deletionPolicy) || self.deletionPolicy != 'Delete'",
            "the bytes of a snapshot that exists are whose it was made for: write Retain",
            "deletionPolicy",
        ),
    )

    source: SnapshotSource
    """What is saved, or what is given a name."""
    include: tuple[Layer, ...] = many(4)
    """What is saved beside the train state. Empty: the buffer and, where there is any, the environments' memory (EpisodicMemory). EpisodicMemory by name: where nothing had been kept by its step, the snapshot is taken without it, and `Ready` says so. Process is not supported by this version: refused."""
    storage_ref: StorageRef | None = None
    """Where the bytes go, by the name of one of the runtime's storages. Not supported by this version: refused. Unset: to the run's own."""
    runtime_ref: RuntimeRef | None = None
    """The runtime that reaches a snapshot that exists. Unset: `default`, of the namespace or of the cluster."""
    deadline_seconds: int = Field(default=3600, ge=1, le=604_800)
    """Time from its creation to a durable manifest; past it, it has failed and is not tried again."""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """What becomes of the bytes when this object is deleted. `Delete`: a Job in this namespace removes them from the bucket first, but for what other snapshots and the run's ledger name; after 10 minutes the object goes all the same. Objects on a run's volume: refused."""
    description: Text | None = None
    """Why it was made, for people."""


class LayerStatus(ApiModel):
    """One part of a snapshot."""

    name: Layer
    """Which part of the snapshot is meant."""
    digest: Digest
    """Digest of its bytes."""
    size_bytes: int = Field(ge=0)
    """Size of its bytes, shared ones included."""
    grade: Grade
    """What continuing from it may claim."""


class ProcessStatus(ApiModel):
    """The image of one container's processes."""

    pod: ObjectName
    """Pod that it was taken of."""
    pod_uid: Name
    """UID of that pod."""
    container: Label
    """Container of the pod."""
    node: ObjectName
    """Node that the pod was on."""
    image_digest: Name
    """Digest of the container's image; it is restored in the same one only."""
    criu_version: Name
    """Version of CRIU that wrote it."""
    digest: Digest
    """Digest of the process image."""


class ObjectLocation(ApiModel):
    """A place in an object store."""

    uri: Uri
    """Address of the manifest."""


class VolumeLocation(ApiModel):
    """A place on a volume of the namespace."""

    claim_name: ObjectName
    """PersistentVolumeClaim of the volume."""
    path: FilePath
    """Manifest in it, from the volume's root."""


class SnapshotLocation(ApiModel):
    """Where the manifest of a snapshot lies: one of these."""

    object: ObjectLocation | None = None
    """In an object store."""
    volume: VolumeLocation | None = None
    """A folder on a volume of the cluster."""


class SnapshotStorage(ApiModel):
    """Where the run of a snapshot keeps objects and records: what it takes to reach the bytes when that run is gone."""

    uri: Uri
    """Root of the object store, as the run had it."""
    endpoint: Uri | None = None
    """Address of the store's server. Unset: the cloud's own."""
    region: Name | None = None
    """Region of the bucket. Unset: the environment's."""
    postgres: PostgresSecretRef | None = None
    """Secret with the connection string of the ledger. Unset: the ledger is a file."""

    def as_storage(self) -> Storage:
        """As a spec has it."""
        ledger = None if self.postgres is None else {"postgres": {"secretRef": self.postgres}}
        given = {"uri": self.uri, "endpoint": self.endpoint, "region": self.region}
        return Storage.model_validate({**given, "ledger": ledger})


def storage_of(storage: Storage | None) -> SnapshotStorage | None:
    """What of a run's storage is noted; None where its objects lie on a volume."""
    if storage is None or storage.uri is None:
        return None
    ledger = storage.ledger.postgres if storage.ledger is not None else None
    return SnapshotStorage(
        uri=storage.uri,
        endpoint=storage.endpoint,
        region=storage.region,
        postgres=ledger.secret_ref if ledger is not None else None,
    )


class SnapshotStatus(ApiModel):
    """What is known of the snapshot."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status speaks about."""
    conditions: tuple[Condition, ...] = many(16, key="type")
    """`Ready` and `Complete` are True when the manifest is durable, `Failed` when it will never be, `Finished` with either."""
    run: RunSource | None = None
    """The run that it is of, with its UID."""
    runtime_ref: RuntimeRef | None = None
    """The runtime of that run, by which the bytes are reached when this object is deleted."""
    storage: SnapshotStorage | None = None
    """Where that run keeps objects and records. Unset: on its volume."""
    step: int | None = Field(default=None, ge=0)
    """Optimizer step whose state it holds."""
    lineage: int | None = Field(default=None, ge=0)
    """Lineage of that step."""
    location: SnapshotLocation | None = None
    """Where its manifest lies. Unset: nowhere yet."""
    digest: Digest | None = None
    """Digest of the manifest."""
    size_bytes: int | None = Field(default=None, ge=0)
    """Size of all parts."""
    grade: Grade | None = None
    """The lowest grade of its parts."""
    layers: tuple[LayerStatus, ...] = many(4, key="name")
    """The parts that it consists of."""
    processes: tuple[ProcessStatus, ...] = many(256)
    """Its process images. Empty: this version makes none in a cluster."""
    start_time: Timestamp | None = None
    """When the saving of it began."""
    completion_time: Timestamp | None = None
    """When the manifest became durable."""


class RolloutSnapshot(ApiModel):
    """A snapshot of a whole run: weights, optimizer, data cursor, finished samples; another run may begin with it."""

    api_version: Literal["rollout.dev/v1alpha1"] = "rollout.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RolloutSnapshot"] = "RolloutSnapshot"
    """Kind of the object."""
    metadata: Meta
    """Name, namespace and labels of the object."""
    spec: SnapshotSpec
    """What is wanted of the snapshot."""
    status: SnapshotStatus | None = None
    """What is known of it; written by the operator."""
