"""The role table: every path, who may call it, what goes in and what comes out.

The service and the client both read it, so neither can drift. A token is made from the run's one
secret and a role's name; one role's token tells nothing about another's.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from blake3 import blake3

from rollout.coordinator.messages import (
    Activation,
    AnchorSaved,
    Batch,
    BatchRequest,
    Claim,
    Claimed,
    Commit,
    Committed,
    Empty,
    Failed,
    Fork,
    Forked,
    Heartbeat,
    HeartbeatAnswer,
    LearnerStart,
    LearnerStarted,
    Message,
    Outcome,
    PublishInitial,
    Register,
    Registered,
    ReplayRequest,
    Role,
    Settings,
    Stop,
    Submit,
    Submitted,
)
from rollout.errors import CoordinatorError

ROLES: tuple[Role, ...] = ("actor", "learner", "control")


class Endpoint(msgspec.Struct, frozen=True):
    """One row of the role table: a path, who may call it, what goes in and what comes out."""

    path: str
    roles: frozenset[str]
    request: type[Message]
    answer: type[Message]


def _rows(role: str, *rows: tuple[str, type[Message], type[Message]]) -> dict[str, Endpoint]:
    return {path: Endpoint(path, frozenset({role}), ask, answer) for path, ask, answer in rows}


ENDPOINTS: dict[str, Endpoint] = {
    **_rows(
        "actor",
        ("/v1/actor/register", Register, Registered),
        ("/v1/actor/claim", Claim, Claimed),
        ("/v1/actor/heartbeat", Heartbeat, HeartbeatAnswer),
        ("/v1/actor/submit", Submit, Submitted),
        ("/v1/actor/activation", Activation, Empty),
        ("/v1/actor/outcome", Outcome, Empty),
    ),
    **_rows(
        "learner",
        ("/v1/learner/start", LearnerStart, LearnerStarted),
        ("/v1/learner/heartbeat", Heartbeat, HeartbeatAnswer),
        ("/v1/learner/publish-initial", PublishInitial, Empty),
        ("/v1/learner/batch", BatchRequest, Batch),
        ("/v1/learner/replay", ReplayRequest, Batch),
        ("/v1/learner/commit", Commit, Committed),
        ("/v1/learner/anchor", AnchorSaved, Empty),
        ("/v1/learner/fork", Fork, Forked),
        ("/v1/learner/failed", Failed, Empty),
        ("/v1/learner/outcome", Outcome, Empty),
    ),
    **_rows(
        "control",
        ("/v1/control/stop", Stop, Empty),
        ("/v1/control/settings", Settings, Empty),
    ),
}


def token_for(secret: str, role: Role) -> str:
    """The bearer token of ``role``: a keyed hash, so one role's token does not give another's."""
    key = blake3(secret.strip().encode()).digest()
    return blake3(f"rollout/{role}".encode(), key=key).hexdigest()


def read_token(secret_file: Path, role: Role) -> str:
    """The role's token from the run's secret file. Raises CoordinatorError when it is not there."""
    try:
        return token_for(secret_file.read_text(), role)
    except OSError as error:
        raise CoordinatorError(
            f"cannot read the run's secret file {secret_file}: {error}"
        ) from error
