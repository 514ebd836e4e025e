"""The role table: every path, who may call it, what goes in and what comes out.

The service and the client both read it, so neither can drift, and nothing else decides what a caller
may do. A token of the run's secret is made from it and a role's name; one role's token tells nothing
about another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from rollout.errors import CoordinatorError
from rollout.protocol.messages import (
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
    Join,
    Joined,
    LearnerStart,
    LearnerStarted,
    Leaving,
    Left,
    MayLeave,
    Message,
    Outcome,
    PublishInitial,
    Register,
    Registered,
    ReplayRequest,
    Role,
    Settings,
    SettingsTaken,
    Stay,
    Stop,
    StoredAgain,
    Submit,
    Submitted,
)

ROLES: tuple[Role, ...] = ("actor", "learner", "operator")


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
        ("/v1/learner/join", Join, Joined),
        ("/v1/learner/stay", Stay, Empty),
        ("/v1/learner/leaving", Leaving, MayLeave),
        ("/v1/learner/left", Left, Empty),
        ("/v1/learner/start", LearnerStart, LearnerStarted),
        ("/v1/learner/heartbeat", Heartbeat, HeartbeatAnswer),
        ("/v1/learner/publish-initial", PublishInitial, Empty),
        ("/v1/learner/batch", BatchRequest, Batch),
        ("/v1/learner/replay", ReplayRequest, Batch),
        ("/v1/learner/commit", Commit, Committed),
        ("/v1/learner/anchor", AnchorSaved, Empty),
        ("/v1/learner/fork", Fork, Forked),
        ("/v1/learner/stored-again", StoredAgain, Empty),
        ("/v1/learner/failed", Failed, Empty),
        ("/v1/learner/outcome", Outcome, Empty),
    ),
    **_rows(
        "operator",
        ("/v1/operator/stop", Stop, Empty),
        ("/v1/operator/settings", Settings, SettingsTaken),
    ),
}

WAITING = frozenset({"/v1/actor/claim", "/v1/learner/batch", "/v1/learner/join"})
"""Calls that wait for something to happen, as long as they are asked to."""

STATUS, PROGRESS, CONFIG = "/v1/status", "/v1/progress", "/v1/config"
OBJECT = "/v1/objects/{name}"

ALLOWED: Mapping[tuple[str, str], frozenset[str]] = {
    **{("POST", path): row.roles for path, row in ENDPOINTS.items()},
    ("GET", STATUS): frozenset(ROLES),
    ("GET", PROGRESS): frozenset({"operator"}),
    ("GET", CONFIG): frozenset({"actor", "learner"}),
    ("HEAD", OBJECT): frozenset({"actor", "learner"}),
    ("GET", OBJECT): frozenset({"actor", "learner"}),
    ("PUT", OBJECT): frozenset({"learner"}),
    ("DELETE", OBJECT): frozenset({"learner"}),
}
"""Who may do what, by method and path; what is not here is done by nobody."""

OPEN = frozenset({"/healthz", "/metrics"})
"""Paths without a caller."""


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
