"""The role table: every call as one ``Route``, who may make it, what goes in and what comes out.

The service and the client both read it, so neither can drift, and nothing else decides what a caller
may do.

    client.call(routes.SUBMIT, Submit(results=results))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollout.protocol import messages as m
from rollout.protocol.messages import Role, WireMessage

ROLES: tuple[Role, ...] = ("actor", "learner", "operator")

SMALL_BYTES, LARGE_BYTES = 16 << 20, 256 << 20
"""What a call's body may have: one that carries no samples, and one that does."""
EVIDENCE_BODY_BYTES = m.EVIDENCE_BYTES_MAX + 1024
"""A tail, and what goes with it."""

Q = TypeVar("Q", bound=WireMessage)
A = TypeVar("A", bound=WireMessage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[Q, A]):
    """One call: where it goes, the role that may make it, what goes in and what comes out."""

    path: str
    """Of the URL, with its version."""
    role: Role
    """Whose token is let in."""
    request: type[Q]
    """Type of the body."""
    answer: type[A]
    """Type of what comes back."""
    waits: bool = False
    """It is answered when something happens, or after ``request.wait_seconds``."""
    body_bytes_max: int = SMALL_BYTES
    """Longer bodies are refused before they are read."""

    def wait_seconds(self, request: Q) -> float:
        """How long the answer to ``request`` may take because nothing happens."""
        return float(getattr(request, "wait_seconds", 0.0)) if self.waits else 0.0


REGISTER = Route(path="/v1/actor/register", role="actor", request=m.Register, answer=m.Registered)
CLAIM = Route(path="/v1/actor/claim", role="actor", request=m.Claim, answer=m.Claimed, waits=True)
ACTOR_HEARTBEAT = Route(
    path="/v1/actor/heartbeat", role="actor", request=m.Heartbeat, answer=m.HeartbeatAnswer
)
SUBMIT = Route(
    path="/v1/actor/submit",
    role="actor",
    request=m.Submit,
    answer=m.Submitted,
    body_bytes_max=LARGE_BYTES,
)
READ_MEMORY = Route(
    path="/v1/actor/memory", role="actor", request=m.ReadMemory, answer=m.MemoryRead
)
ACTIVATION = Route(path="/v1/actor/activation", role="actor", request=m.Activation, answer=m.Empty)
ACTOR_OUTCOME = Route(path="/v1/actor/outcome", role="actor", request=m.Outcome, answer=m.Empty)
ACTOR_EVIDENCE = Route(
    path="/v1/actor/evidence",
    role="actor",
    request=m.Evidence,
    answer=m.Empty,
    body_bytes_max=EVIDENCE_BODY_BYTES,
)

CLAIM_SANDBOX = Route(
    path="/v1/actor/sandbox/claim",
    role="actor",
    request=m.ClaimSandbox,
    answer=m.SandboxClaimed,
    waits=True,
)
RELEASE_SANDBOX = Route(
    path="/v1/actor/sandbox/release",
    role="actor",
    request=m.ReleaseSandbox,
    answer=m.SandboxReleased,
    waits=True,
)

START = Route(
    path="/v1/learner/start", role="learner", request=m.LearnerStart, answer=m.LearnerStarted
)
LEARNER_HEARTBEAT = Route(
    path="/v1/learner/heartbeat", role="learner", request=m.Heartbeat, answer=m.HeartbeatAnswer
)
PUBLISH_INITIAL = Route(
    path="/v1/learner/publish-initial", role="learner", request=m.PublishInitial, answer=m.Empty
)
BATCH = Route(
    path="/v1/learner/batch", role="learner", request=m.BatchRequest, answer=m.Batch, waits=True
)
REPLAY = Route(path="/v1/learner/replay", role="learner", request=m.ReplayRequest, answer=m.Batch)
FOLLOW = Route(path="/v1/learner/follow", role="learner", request=m.Follow, answer=m.Followed)
COMMIT = Route(
    path="/v1/learner/commit",
    role="learner",
    request=m.Commit,
    answer=m.Committed,
    body_bytes_max=LARGE_BYTES,
)
ANCHOR = Route(path="/v1/learner/anchor", role="learner", request=m.AnchorSaved, answer=m.Empty)
FORK = Route(path="/v1/learner/fork", role="learner", request=m.Fork, answer=m.Forked)
STORED_AGAIN = Route(
    path="/v1/learner/stored-again", role="learner", request=m.StoredAgain, answer=m.Empty
)
FAILED = Route(path="/v1/learner/failed", role="learner", request=m.Failed, answer=m.Empty)
LEARNER_OUTCOME = Route(
    path="/v1/learner/outcome", role="learner", request=m.Outcome, answer=m.Empty
)
LEARNER_EVIDENCE = Route(
    path="/v1/learner/evidence",
    role="learner",
    request=m.Evidence,
    answer=m.Empty,
    body_bytes_max=EVIDENCE_BODY_BYTES,
)

JOIN = Route(path="/v1/learner/join", role="learner", request=m.Join, answer=m.Joined, waits=True)
STAY = Route(path="/v1/learner/stay", role="learner", request=m.Stay, answer=m.Empty)
LEAVING = Route(path="/v1/learner/leaving", role="learner", request=m.Leaving, answer=m.MayLeave)
LEFT = Route(path="/v1/learner/left", role="learner", request=m.Left, answer=m.Empty)

STOP = Route(path="/v1/operator/stop", role="operator", request=m.Stop, answer=m.Empty)
SETTINGS = Route(
    path="/v1/operator/settings", role="operator", request=m.Settings, answer=m.SettingsTaken
)
SNAPSHOT = Route(
    path="/v1/operator/snapshot",
    role="operator",
    request=m.SnapshotOrder,
    answer=m.SnapshotState,
)

ROUTES: Mapping[str, Route] = {
    one.path: one for one in list(globals().values()) if isinstance(one, Route)
}
"""Every call above, by path."""

STATUS, PROGRESS, CONFIG = "/v1/status", "/v1/progress", "/v1/config"
OBJECT = "/v1/objects/{name}"

ALLOWED: Mapping[tuple[str, str], frozenset[str]] = {
    **{("POST", path): frozenset({route.role}) for path, route in ROUTES.items()},
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
