"""WorkerConfig: the one file that every worker process reads. Written by operator or supervisor."""

from typing import Literal

from pydantic import Field

from rollout_api.base import ApiModel, Digest, Name, Uri
from rollout_api.v1alpha1.common import Dtype
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import Grade


class RunIdentity(ApiModel):
    """Which run this is."""

    name: Name
    """Name of the run."""
    namespace: Name = "default"
    """Namespace of the run."""
    uid: Name
    """Identity of the run: object prefixes and the ledger's first row use it."""


class ResolvedRun(ApiModel):
    """What plan time found out: no worker looks anything up again."""

    model_path: FilePath
    """Local folder with config.json, model.safetensors and the tokenizer."""
    model_digest: Digest
    """Digest of the model's tensors (`rollout.weights.digest`)."""
    dtype: Dtype
    """Number format of the policy."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end an assistant turn."""
    pad_token_id: int = 0
    """Token id that fills the end of a row; a reward model's score is read before it."""
    prompt_tokens_max: int = Field(ge=1)
    """Longest prompt in tokens; fixed shapes are made from it."""
    models: dict[str, FilePath] = Field(default_factory=dict)
    """Local folders of further models, by role (`reference`, `critic`, `reward/<name>`)."""
    model_digests: dict[str, Digest] = Field(default_factory=dict)
    """Digest of each further model's files, by role."""
    data_digests: dict[str, str] = Field(default_factory=dict)
    """Digest of each data source, by role (`train`, or an evaluation's name)."""
    bad_records: int = Field(default=0, ge=0)
    """Records of the training data that cannot be used and are left out (`onBadRecord: Skip`)."""
    left_out: tuple[int, ...] = ()
    """Positions of rows of the training data whose prompt has more than `train.maxPromptTokens` tokens."""
    threads: int = Field(default=1, ge=1)
    """Compute threads of one process."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """Engine of the actors."""
    grade: Grade = "Exact"
    """What may be claimed about equality of this run."""


class Layout(ApiModel):
    """Where things are for this process."""

    run_dir: FilePath
    """Folder of the run."""
    coordinator_url: Uri
    """Base address of the coordinator."""
    token_file: FilePath
    """File with the bearer token."""
    objects_dir: FilePath
    """Root of the local object store, or of its cache."""
    objects_served: bool = False
    """Whether actors and learner reach objects through the coordinator, sharing neither a folder nor a bucket with it."""
    ledger_path: FilePath
    """SQLite file of the ledger; only the coordinator opens it."""


class WorkerConfig(ApiModel):
    """Everything a coordinator, actor or learner needs to know."""

    run: RunIdentity
    """Which run this is."""
    spec_digest: Digest
    """blake3 of the canonical resolved spec; the root of the hash chain."""
    spec: RolloutRunSpec
    """The run's spec with every preset resolved."""
    resolved: ResolvedRun
    """What plan time found out."""
    layout: Layout
    """Where things are."""
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    """Time between a worker's signs of life."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """Time after which work of a silent worker is given to another."""
    code_files: tuple[FilePath, ...] = ()
    """Files with pickled user functions, loaded before rewards and environments are built."""
