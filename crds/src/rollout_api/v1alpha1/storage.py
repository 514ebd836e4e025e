"""Where a run's truth lies: the ledger (rows) and the object store (bytes); and the user's code."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Digest, Name, ObjectName, OneOf, Rule, Uri, filled
from rollout_api.v1alpha1.common import NameRef
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.pods import Quantity

KmsKey = Annotated[str, StringConstraints(min_length=1, max_length=512)]
"""Name of a key in a cloud's key management service."""


class Sqlite(ApiModel):
    """A file on the coordinator's volume; never on a network file system."""

    storage_class_name: ObjectName | None = None
    """StorageClass of the volume. Unset: the runtime's, else the cluster's default."""
    size: Quantity = filled("10Gi")
    """Size of the volume."""


class PostgresSecretRef(ApiModel):
    """Names the Secret that holds the connection string."""

    name: ObjectName
    """Name of the Secret."""
    key: Name = "dsn"
    """Key whose value is a libpq connection string."""


class Postgres(ApiModel):
    """A database; the coordinator's pod is then replaceable."""

    secret_ref: PostgresSecretRef
    """Connection string; only the coordinator reads it. On one machine it is `ROLLOUT_LEDGER_DSN` of the environment."""


class TrajectoryRetention(ApiModel):
    """How long tokens, logprobs and texts of samples stay in the ledger."""

    steps: int = Field(ge=0, le=10_000_000)
    """Steps kept behind the oldest one that a kept snapshot replays. 0: no more than a resume may need."""


class Retention(ApiModel):
    """What the ledger lets go of while the run goes on. Ids, rewards, lengths and the hash chain stay."""

    trajectories: TrajectoryRetention
    """Bodies of consumed samples, and answers of evaluations but the first and the newest."""


class Ledger(OneOf):
    """Where tasks, trajectories and commits are recorded."""

    members: ClassVar[tuple[str, ...]] = ("sqlite", "postgres")

    sqlite: Sqlite | None = None
    """A file; the default."""
    postgres: Postgres | None = None
    """A Postgres database, in place of a file."""
    deletion_policy: Literal["Retain", "Delete"] = filled("Retain")
    """What becomes of the records when the run object is deleted."""
    retention: Retention | None = None
    """What is removed while the run goes on. Unset: everything is kept."""


class Storage(ApiModel):
    """Where objects and records are kept; immutable."""

    uri: Uri | None = None
    """Root of the object store, `s3://bucket/prefix`, `gs://bucket/prefix` or `file:///folder`; the run's UID is added, in a cluster `<namespace>/<uid>`. Weights, optimizer states and other objects go there; records stay in the ledger. Unset: the runtime's, or the run's folder."""
    endpoint: Uri | None = None
    """Address of a server that speaks S3 (buckets are then addressed by path) or Google Cloud Storage; one of the latter at `http://` is an emulator and is given no credentials. Unset: the cloud's own."""
    region: Name | None = None
    """Region of an S3 bucket. Unset: the environment's."""
    kms_key: KmsKey | None = None
    """Key of the bucket's cloud that encrypts what the run writes there: the ARN of a KMS key for `s3://`, `projects/P/locations/L/keyRings/R/cryptoKeys/K` for `gs://`. The cloud encrypts and decrypts; whoever reads needs the right to the key. Unset: as the bucket does it by itself."""
    cache_size: Quantity | None = None
    """Largest size of a process's folder of verified copies of objects; a few versions of the weights must fit. Unset: 20Gi."""
    ledger: Ledger | None = None
    """Where records lie. Unset: the runtime's, else sqlite."""

    @property
    def bodies_behind(self) -> int | None:
        """Steps whose trajectories are kept behind the oldest snapshot; None: those of all steps are."""
        retention = self.ledger.retention if self.ledger else None
        return retention.trajectories.steps if retention else None


class CodeImage(ApiModel):
    """Code inside a container image, mounted read-only."""

    reference: Name
    """Image, best by digest."""
    path: FilePath = "/"
    """Folder in the image that goes on the import path."""


class CodeWheel(ApiModel):
    """A wheel, installed without its dependencies."""

    uri: Uri
    """Location of the wheel."""
    digest: Digest | None = None
    """Digest of the file, `sha256:...` or `blake3:...`. Needed: a place may hold another file tomorrow."""


class Code(OneOf):
    """The user's own code: rewards, environments, suites."""

    config_map: NameRef | None = None
    """A ConfigMap whose keys are Python files."""
    image: CodeImage | None = None
    """A container image that holds the code."""
    wheel: CodeWheel | None = None
    """A Python wheel that holds the code."""
    path: FilePath | None = None
    """A folder beside the manifest; local runs only."""


class SnapshotObject(ApiModel):
    """A snapshot by location, wherever it was made."""

    uri: Uri
    """Location of its manifest: `PLACE/snapshots/manifests/ID.json`, as `rollout snapshot show ID` has them."""
    digest: Digest
    """`blake3:` and the snapshot's id, which what the manifest lists comes to."""


class SnapshotRef(ApiModel):
    """A snapshot by name."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.name.matches('^[0-9a-f]{32,}$')",
            "snapshotRef names a RolloutSnapshot: a digest goes with a uri, as object",
            "name",
        ),
    )

    name: ObjectName
    """Name of a RolloutSnapshot in the same namespace, never a digest; its bytes must lie in a bucket."""


class RestoreFrom(OneOf):
    """The snapshot a run continues from; seed and data order are inherited."""

    members: ClassVar[tuple[str, ...]] = ("snapshot_ref", "object")

    snapshot_ref: SnapshotRef | None = None
    """A snapshot in the cluster, by its name."""
    object: SnapshotObject | None = None
    """One that stands in a store, by its location; no RolloutSnapshot is needed. In a cluster it lies below the namespace's place of `storage.uri` (the run's or the runtime's), or where the runtime's `allowed.storage` says, and is signed by the installation or one of the runtime's `trustedSigners`; on one machine by this installation or a key of `--trust`. Anything else is refused."""
    request: Name | None = None
    """Asks a run that has gone back to this snapshot already to do so once more: any text that did not stand here then, such as the time. Taking it out asks nothing. Unset: once. On one machine: refused, as `rollout run --in-place` is asked each time."""
