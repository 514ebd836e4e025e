"""What a service tells of models, of what they were saved as, and of sessions. Times are UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rollout.client.errors import UnansweredError

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


def read_checkpoint(said: Any) -> Checkpoint:
    """A checkpoint as it comes. Raises UnansweredError."""
    return Checkpoint(
        checkpoint_id=said["checkpoint_id"],
        checkpoint_type=said["checkpoint_type"],
        time=read_time(said["time"]),
        tinker_path=said["tinker_path"],
        size_bytes=said.get("size_bytes"),
        public=said.get("public", False),
        expires_at=None if said.get("expires_at") is None else read_time(said["expires_at"]),
    )


def read_checkpoints(said: Any) -> CheckpointsListResponse:
    """A list of them."""
    cursor = said.get("cursor")
    return CheckpointsListResponse(
        checkpoints=[read_checkpoint(one) for one in said["checkpoints"]],
        cursor=None if cursor is None else read_part(cursor),
    )


def read_run(said: Any) -> TrainingRun:
    """A model as it comes."""
    last = {
        name: None if said.get(name) is None else read_checkpoint(said[name])
        for name in ("last_checkpoint", "last_sampler_checkpoint")
    }
    return TrainingRun(
        training_run_id=said["training_run_id"],
        base_model=said["base_model"],
        model_owner=said["model_owner"],
        is_lora=said["is_lora"],
        last_request_time=read_time(said["last_request_time"]),
        corrupted=said.get("corrupted", False),
        lora_rank=said.get("lora_rank"),
        **last,
    )


def read_runs(said: Any) -> TrainingRunsResponse:
    """A list of them."""
    return TrainingRunsResponse(
        training_runs=[read_run(one) for one in said["training_runs"]],
        cursor=read_part(said["cursor"]),
    )


def read_part(said: Any) -> ListPart:
    """Which part of a list."""
    return ListPart(offset=said["offset"], limit=said["limit"], total_count=said["total_count"])


def read_time(text: str) -> datetime:
    """A time as it comes. Raises UnansweredError."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UnansweredError(f"the answer has no time: {error}; is this the service?") from error
