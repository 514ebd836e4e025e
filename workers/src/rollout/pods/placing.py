"""What the container that places a pod's models hands to the one that works: nothing, or why there is no model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollout import errors
from rollout.common.atomic_files import replace_text
from rollout.errors import RolloutError, SpecError
from rollout_api.worker import WorkerOrder

REFUSAL_BYTES_MAX = 64 << 10


class ModelRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A ``SpecError`` by class name: what no second try mends."""

    kind: str
    message: str


def refusal_path(order: WorkerOrder) -> Path:
    """Where it lies."""
    return Path(order.layout.run_dir) / "models.json"


def write_refusal(order: WorkerOrder, error: SpecError | None) -> None:
    """Say it to the role's container, which tells the coordinator; None: all models are there."""
    path = refusal_path(order)
    path.parent.mkdir(parents=True, exist_ok=True)
    if error is None:
        path.unlink(missing_ok=True)
        return
    refusal = ModelRefusal(kind=type(error).__name__, message=str(error))
    replace_text(path, msgspec.json.encode(refusal).decode())


def read_refusal(order: WorkerOrder) -> RolloutError | None:
    """The error that the other container met, if there was one."""
    try:
        with refusal_path(order).open("rb") as file:
            refusal = msgspec.json.decode(file.read(REFUSAL_BYTES_MAX), type=ModelRefusal)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        return SpecError(
            f"{refusal_path(order)} is not what the container `models` writes: {error}"
        )
    kind = getattr(errors, refusal.kind, None)
    known = isinstance(kind, type) and issubclass(kind, SpecError)
    return (kind if known else SpecError)(refusal.message)
