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
    """A path in its parts; ``checkpoint_id`` is ``weights/NAME`` or ``sampler_weights/NAME``."""

    tinker_path: str
    training_run_id: str
    checkpoint_type: Literal["training", "sampler"]
    checkpoint_id: str

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
    limit: int
    total_count: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Something saved; ``size_bytes`` on the disk, which several names of the same tensors share."""

    checkpoint_id: str
    checkpoint_type: Literal["training", "sampler"]
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointsListResponse:
    """Newest first; ``cursor`` None: these are all."""

    checkpoints: Sequence[Checkpoint]
    cursor: ListPart | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A model, and what it was saved as last; ``corrupted``: the service cannot make its next call."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    last_request_time: datetime
    corrupted: bool = False
    lora_rank: int | None = None
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRunsResponse:
    """Models, newest first."""

    training_runs: Sequence[TrainingRun]
    cursor: ListPart


@dataclass(frozen=True, kw_only=True)
class ListSessionsResponse:
    """Ids of sessions, newest first."""

    sessions: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class GetSessionResponse:
    """Ids of the models and samplers of a session."""

    training_run_ids: Sequence[str]
    sampler_ids: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class GetSamplerResponse:
    """What a sampler draws from; ``model_path`` None: a base, or weights without a name."""

    sampler_id: str
    base_model: str
    model_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class WeightsInfoResponse:
    """What something saved is of."""

    base_model: str
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
