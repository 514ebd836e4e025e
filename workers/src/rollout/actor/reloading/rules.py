"""When changed files of a plugin are looked at, what may take the place of what, and when it is taken back, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollout.codec import DIGEST_SHOWN
from rollout.plugins.sidecar.manifest import PluginManifest
from rollout.plugins.sidecar.stamps import Stamp
from rollout.protocol.messages import Failure, TaskResult

Digests = Mapping[str, str]
"""Of each plugin's files, by its path in the run's code."""
Manifests = Mapping[str, PluginManifest]
"""What each plugin says of itself, by the same."""
CLAIMS_LOST_MAX = 2
"""Claims in a row in which infrastructure takes groups, and none comes of the version, before it is taken back: one may be an accident."""
REWARD_MAX = 3e38
"""A reward that is larger is none that a learner could compute with, and no coordinator takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What was seen of the files: ``last`` time, and when they were ``tried``, and tried ``again``."""

    last: Stamp | None = None
    tried: Stamp | None = None
    again: Stamp | None = None

    def see(self, stamp: Stamp) -> tuple[Looks, bool]:
        """The next state, and whether to try what lies there: it is new, and nobody wrote between two looks."""
        tries = stamp == self.last and stamp != self.tried
        return replace(self, last=stamp, tried=stamp if tries else self.tried), tries

    def fail(self) -> Looks:
        """The state after what was tried has failed: it is tried once more, as the machine may be to blame."""
        if self.again == self.tried:
            return self
        return replace(self, again=self.tried, tried=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStanding:
    """How a version has done: whether a group has ever come of it, in how many claims since groups were lost, and why it is ``broken``.

    Whatever a version does that the run was not planned for ends in a group that has failed: a prompt that is too long,
    a field that its rows do not have, a broken answer, a process that dies.
    """

    is_proven: bool = False
    has_lost: bool = False
    claims_lost: int = 0
    broken: str = ""

    def see(self, result: TaskResult) -> VersionStanding:
        """The state after one more group; one that somebody else is to go on with says nothing."""
        failure = result.failure or find_excess(result)
        if self.broken or (failure is not None and failure.kind == "returned"):
            return self
        if failure is None:
            return VersionStanding(is_proven=True)
        over = failure.kind == "data" or self.claims_lost + 1 >= CLAIMS_LOST_MAX
        return replace(self, has_lost=True, broken=failure.message if over else "")

    def begin_claim(self) -> VersionStanding:
        """The state as more groups are begun."""
        return replace(self, has_lost=False, claims_lost=self.claims_lost + self.has_lost)


def find_excess(result: TaskResult) -> Failure | None:
    """What is wrong with rewards that are finite, and larger than any that can be trained on; None where nothing is."""
    for one in result.trajectories:
        for value in (one.reward, *one.rewards.values()):
            if abs(value) > REWARD_MAX:
                return Failure(
                    kind="data", message=f"a reward of {value:g}: expected at most {REWARD_MAX:g}"
                )
    return None


def spare(result: TaskResult) -> TaskResult:
    """The result that spends no try of its task, where a version that is taken back has failed at it."""
    failure = result.failure or find_excess(result)
    if failure is None or failure.kind == "returned":
        return result
    why = f"to be played with the plugins before: {failure.message}"
    return TaskResult(
        task_id=result.task_id, epoch=result.epoch, failure=Failure(kind="returned", message=why)
    )


def find_refusal(before: Manifests, after: Manifests) -> str:
    """Why a version cannot take the place of the one before; empty where it can.

    Names stand in metrics and before tools; of which kind a plugin is stands in the manifest, as does its path.
    """
    for path, old in before.items():
        new = after.get(path)
        if new is None:
            return f"plugin {path} is not there any more: put it back"
        for field in ("contract", "kind", "name"):
            if getattr(old, field) != getattr(new, field):
                return (
                    f"plugin {path}: its {field} is {getattr(new, field)!r}, the run began with"
                    f" {getattr(old, field)!r}: give it that {field} again, or start another run"
                )
    return ""


def describe_turn(before: Digests, after: Digests, manifests: Manifests, why: str = "") -> str:
    """What new episodes are played with from now on, for people; ``why``: what those before have failed at."""
    changed = [path for path in after if after[path] != before.get(path)]
    told = [
        f"{path} {manifests[path].version} ({after[path][:DIGEST_SHOWN]}, before"
        f" {before.get(path, '')[:DIGEST_SHOWN]})"
        for path in changed
    ]
    if not why:
        return f"plugins: new episodes are played with {', '.join(told)}"
    return f"plugins: what was changed has failed: {why}; taken back: episodes are played with {', '.join(told)}"


def describe_refusal(why: str) -> str:
    """Why nothing changes, for people."""
    return f"plugins: what was changed is not taken: {why}; episodes go on with the version before"


SAME_AGAIN = "plugins: what lies there is again what episodes are played with"
