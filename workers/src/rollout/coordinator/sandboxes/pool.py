"""The rules of a pool of sandbox pods: which to make, which to give to whom, which to remove. Pure but for the pool itself.

A pod is for one episode and is never given twice. One that ends before anybody has it is a failure of the platform:
the next is made later, and whoever waits is told why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNSEEN_SECONDS = 15.0
"""How long after it was made a pod may be missing in what the API server lists."""
WISH_SECONDS = 10.0
"""How long after it was last asked for a wish holds."""
WITHDRAWN_SECONDS = 60.0
"""How long after it was withdrawn a wish is not granted: a call that asks for it may still be under way."""
REMOVE_AGAIN_SECONDS = 10.0
MADE_AT_ONCE_MAX = 16
PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod as the API server tells it. ``address`` empty: not ready. ``why``: what keeps it, or how it ended."""

    name: str
    uid: str = ""
    address: str = ""
    ended: bool = False
    past_memory: bool = False
    going: bool = False
    why: str = ""


@dataclass(slots=True, kw_only=True)
class PooledPod:
    """One pod that this process has made. ``claim``: whose it is; empty while it is nobody's."""

    name: str
    secret: bytes
    key: bytes
    made_at: float
    seen: PodSeen | None = None
    claim: str = ""
    claimed_at: float = 0.0
    released: bool = False
    removed_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.seen is not None and (self.seen.ended or self.seen.going)

    @property
    def is_free(self) -> bool:
        """Whether it is, or will be, somebody's to have."""
        return not (self.claim or self.released or self.removed_at is not None or self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """``pods_max`` at a time, ``warm`` kept ready. ``age_seconds``: older ones are removed, whoever has them."""

    pods_max: int
    warm: int
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStep:
    """What to do now. ``remove`` are names with UIDs."""

    make: int = 0
    remove: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Pool:
    """The pods of one broker. ``wishes`` are claims that wait, and when they were last asked for."""

    bounds: PoolBounds
    pods: dict[str, PooledPod] = field(default_factory=dict)
    wishes: dict[str, float] = field(default_factory=dict)
    withdrawn: dict[str, float] = field(default_factory=dict)
    strangers: dict[str, str] = field(default_factory=dict)
    why: str = ""
    failures: int = 0
    make_after: float = 0.0

    def add(self, pod: PooledPod) -> None:
        """A pod is being made."""
        self.pods[pod.name] = pod

    def observe(self, listed: Mapping[str, PodSeen], now: float) -> None:
        """What the API server lists; pods of an earlier life of this process are nobody's."""
        self.strangers = {
            one.name: one.uid
            for one in listed.values()
            if one.name not in self.pods and not one.going
        }
        for pod in list(self.pods.values()):
            seen = listed.get(pod.name)
            if seen is None:
                if pod.seen is not None or now - pod.made_at > UNSEEN_SECONDS:
                    del self.pods[pod.name]
                continue
            if seen.ended and not pod.ended and pod.is_free:
                self.fail(seen.why or "a sandbox pod ended before it was used", now)
            pod.seen = seen

    def fail(self, why: str, now: float) -> None:
        """A pod did not come up, or could not be made: the next one later."""
        self.why = why
        pause = min(PAUSE_FIRST_SECONDS * 2.0**self.failures, PAUSE_MAX_SECONDS)
        self.failures += 1
        self.make_after = now + pause

    def step(self, now: float, *, over: bool = False) -> PoolStep:
        """What is to be made and removed; ``over``: the run has ended, and nobody needs any more."""
        self.wishes = {
            one: asked for one, asked in self.wishes.items() if now - asked < WISH_SECONDS
        }
        self.withdrawn = {
            one: at for one, at in self.withdrawn.items() if now - at < WITHDRAWN_SECONDS
        }
        remove = [*self.strangers.items()]
        for pod in self.pods.values():
            old = now - (pod.claimed_at or pod.made_at) > self.bounds.age_seconds
            done = pod.released or pod.ended or old or (over and not pod.claim)
            asked = pod.removed_at is not None and now - pod.removed_at < REMOVE_AGAIN_SECONDS
            if done and not asked and pod.seen is not None:
                pod.removed_at = now
                remove.append((pod.name, pod.seen.uid))
        free = sum(one.is_free for one in self.pods.values())
        wanted = 0 if over else self.bounds.warm + len(self.wishes) - free
        room = self.bounds.pods_max - len(self.pods) - len(self.strangers)
        make = 0 if now < self.make_after else min(wanted, room, MADE_AT_ONCE_MAX)
        return PoolStep(make=max(0, make), remove=tuple(remove))

    def grant(self, claim: str, now: float) -> PooledPod | None:
        """The pod of this wish, the oldest that is ready; None while there is none, and the wish is remembered."""
        if claim in self.withdrawn:
            return None
        for pod in self.pods.values():
            if pod.claim == claim and not pod.released:
                return pod
        for pod in self.pods.values():
            if pod.is_free and pod.seen is not None and pod.seen.address:
                pod.claim, pod.claimed_at = claim, now
                self.wishes.pop(claim, None)
                self.failures, self.why = 0, ""
                return pod
        self.wishes[claim] = now
        return None

    def release(self, name: str) -> None:
        """It is not needed any more; idempotent."""
        if (pod := self.pods.get(name)) is not None:
            pod.released = True

    def withdraw(self, claim: str, now: float) -> None:
        """Nobody wants it any more; what it was given goes. Idempotent."""
        self.wishes.pop(claim, None)
        self.withdrawn[claim] = now
        for pod in self.pods.values():
            pod.released = pod.released or pod.claim == claim

    def reason(self) -> str:
        """Why there is none, in words for people."""
        if len(self.pods) >= self.bounds.pods_max and not any(
            one.is_free for one in self.pods.values()
        ):
            return f"all {self.bounds.pods_max} sandbox pods that the runtime allows are in use"
        waiting = [
            one.seen.why for one in self.pods.values() if one.seen is not None and one.is_free
        ]
        return next(filter(None, waiting), "") or self.why or "no sandbox pod is ready yet"

    @property
    def is_moving(self) -> bool:
        """Whether something is about to change: a pod comes up, or is awaited."""
        coming = any(
            one.is_free and not (one.seen and one.seen.address) for one in self.pods.values()
        )
        return coming or bool(self.wishes)
