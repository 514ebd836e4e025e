"""What a coordinator says of a snapshot: the word of a tenant's pod, so it is short, plain, and of one form, or none. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rollout_api.v1alpha1.operations import Layer
from rollout_api.v1alpha1.run_status import Grade
from rollout_operator.errors import CoordinatorUnreachable

LAYERS: dict[str, Layer] = {
    "train_state": "TrainState",
    "buffer": "Buffer",
    "episodic_memory": "EpisodicMemory",
    "process": "Process",
}
GRADES: dict[str, Grade] = {"exact": "Exact", "logical": "Logical"}
WORDS_MAX = 600
_Root = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, le=2**53)]


class LayerAnswer(BaseModel):
    """One layer of a snapshot."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    kind: Literal["train_state", "buffer", "episodic_memory", "process"]
    digest: _Root
    size_bytes: _Count
    grade: Literal["exact", "logical"]


class SnapshotAnswer(BaseModel):
    """How far a snapshot is; ``id`` and what follows where there is one to be signed, or that is taken."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    state: Literal["Waiting", "Saving", "Unsigned", "Taken", "Failed"]
    id: Literal[""] | _Root = ""
    step: _Count = 0
    lineage: _Count = 0
    grade: Literal["", "exact", "logical"] = ""
    size_bytes: _Count = 0
    layers: Annotated[list[LayerAnswer], Field(max_length=len(LAYERS))] = []
    message: str = ""

    @property
    def words(self) -> str:
        """What it says, as far as a status has room for it; control characters are left out."""
        return "".join(one if one.isprintable() else " " for one in self.message[:WORDS_MAX])


def parse_answer(text: str) -> SnapshotAnswer:
    """The answer. Raises CoordinatorUnreachable for anything else."""
    try:
        found = SnapshotAnswer.model_validate_json(text)
    except ValidationError as error:
        raise CoordinatorUnreachable(
            f"the coordinator's answer is none that this operator reads: {error.error_count()} faults"
        ) from error
    whole = bool(found.id and found.grade and found.layers)
    if found.state in ("Unsigned", "Taken") and not whole:
        raise CoordinatorUnreachable(f"the coordinator's answer {found.state} names no snapshot")
    if len({one.kind for one in found.layers}) != len(found.layers):
        raise CoordinatorUnreachable("the coordinator's answer names a layer twice")
    return found
