"""What a service tells of models, of what they were saved as, and of sessions. Times are UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

SCHEME = "tinker://"
KINDS: dict[str, Literal["training", "sampler"]] = {
    "weights": "training",
    "sampler_weights": "sampler",
}


@dataclass(frozen=True, kw_only=True)
class ParsedCheckpointTinkerPath:
    """A path in its parts."""

    tinker_path: str
    """The whole of it."""
    training_run_id: str
    """The model's."""
    checkpoint_type: Literal["training", "sampler"]
    """``training``: a state with moments; ``sampler``: weights alone."""
    checkpoint_id: str
    """``weights/NAME`` or ``sampler_weights/NAME``."""

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Raises ValueError for what is no path of something saved."""
        parts = tinker_path.removeprefix(SCHEME).split("/")
        if not tinker_path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            raise ValueError(
                f"tinker_path: expected {SCHEME}MODEL/weights/NAME or .../sampler_weights/NAME, got {tinker_path!r}"
            )
        return cls(
            tinker_path=tinker_path,
            training_run_id=parts[0],
            checkpoint_type=KINDS[parts[1]],
            checkpoint_id="/".join(parts[1:]),
        )


@dataclass(frozen=True, kw_only=True)
class ListPart:
    """Which part of a list this is, of how many."""

    offset: int
    """Entries before this part."""
    limit: int
    """Most entries of a part."""
    total_count: int
    """Entries of the whole list."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Something saved."""

    checkpoint_id: str
    """``weights/NAME`` or ``sampler_weights/NAME``."""
    checkpoint_type: Literal["training", "sampler"]
    """``training``: a state with moments; ``sampler``: weights alone."""
    time: datetime
    """When it was saved."""
    tinker_path: str
    """What clients load it by."""
    size_bytes: int | None = None
    """On the disk, which several names of the same tensors share; None: not known."""
    public: bool = False
    """Whether other keys may read it."""
    expires_at: datetime | None = None
    """When it is removed; None: never."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsListResponse:
    """Newest first; ``cursor`` None: these are all."""

    checkpoints: Sequence[Checkpoint]
    """Newest first."""
    cursor: ListPart | None = None
    """None: these are all."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A model, and what it was saved as last."""

    training_run_id: str
    """The model's id."""
    base_model: str
    """What it began from."""
    model_owner: str
    """Whose key made it."""
    is_lora: bool
    """An adapter is trained; False: all parameters."""
    last_request_time: datetime
    """Of its last call, or when it was made."""
    corrupted: bool = False
    """The service cannot make its next call."""
    lora_rank: int | None = None
    """None where there is no adapter."""
    last_checkpoint: Checkpoint | None = None
    """Newest state; None: none is left."""
    last_sampler_checkpoint: Checkpoint | None = None
    """Newest weights to sample from; None: none are left."""


@dataclass(frozen=True, kw_only=True)
class TrainingRunsResponse:
    """Models, newest first."""

    training_runs: Sequence[TrainingRun]
    """Newest first."""
    cursor: ListPart
    """Which of them these are."""


@dataclass(frozen=True, kw_only=True)
class ListSessionsResponse:
    """Ids of sessions, newest first."""

    sessions: Sequence[str]
    """Newest first."""


@dataclass(frozen=True, kw_only=True)
class GetSessionResponse:
    """What a session has made."""

    training_run_ids: Sequence[str]
    """Of its models."""
    sampler_ids: Sequence[str]
    """Of its samplers."""


@dataclass(frozen=True, kw_only=True)
class GetSamplerResponse:
    """What a sampler draws from."""

    sampler_id: str
    """Of which."""
    base_model: str
    """Under an adapter, or as it is."""
    model_path: str | None = None
    """None: a base, or weights without a name."""


@dataclass(frozen=True, kw_only=True)
class WeightsInfoResponse:
    """What something saved is of."""

    base_model: str
    """What the weights began from."""
    is_lora: bool
    """They are an adapter; False: all parameters."""
    lora_rank: int | None = None
    """None where there is no adapter."""
    train_unembed: bool | None = None
    """The unembedding is trained, too; None, here and below: the service does not say."""
    train_mlp: bool | None = None
    """The feed-forward layers are."""
    train_attn: bool | None = None
    """The attention layers are."""
