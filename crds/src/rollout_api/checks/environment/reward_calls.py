"""How rewards are put together and asked: settings of one source that contradict each other, or that nothing would read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_api.checks.environment.rewards import reward_name
from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem
from rollout_api.v1alpha1.environment import Reward
from rollout_api.v1alpha1.run import RolloutRunSpec

_ALL = ("batch_size", "concurrency", "retries", "cache_entries")
_NAMES = {
    "batch_size": "batchSize",
    "concurrency": "concurrency",
    "retries": "retries",
    "cache_entries": "cacheEntries",
}
_READ = {
    "code-tests": _ALL,
    "format": ("batch_size", "concurrency"),
    "judge": _ALL,
    "math-verify": ("batch_size", "concurrency", "cache_entries"),
    "a judge's model": ("batch_size", "cache_entries"),
    "model": ("batch_size",),
    "plugin": ("batch_size", "concurrency", "retries"),
    "python": _ALL,
}
"""What is read of each kind of source: the others answer at once, from what they are given."""
_WHY = {
    "a judge's model": "a judge's model is one process, which reads one question after the other",
    "model": "a reward model is one process that scores a prompt's answers together, and their last digits depend on it",
    "plugin": "a plugin's files may change while the run goes on: what it keeps is its own",
}
_COMPARES = ("a judge's model", "judge", "plugin", "python")


def reward_bounds_are_ranges(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A lower bound above the upper one."""
    for field, reward in _rewards(spec):
        low, high = reward.at_least, reward.at_most
        if low is not None and high is not None and low > high:
            yield Problem(
                field=f"{field}.atLeast",
                reason="EmptyRange",
                message=f"atLeast {low:g} is above atMost {high:g}: nothing lies between them",
                fix="swap them, or leave one out",
            )


def gates_hold_something(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A gate of the only reward, which states no total: nothing is kept from counting."""
    for field, rewards in _lists(spec):
        for index, reward in enumerate(rewards):
            if reward.gate is not None and len(rewards) == 1 and reward.gate.else_total is None:
                yield Problem(
                    field=f"{field}[{index}].gate",
                    reason="NothingRemoved",
                    message="it is the only reward, and its gate states no total: it counts either way",
                    fix="set gate.elseTotal, add another reward, or remove the gate",
                )


def calls_are_made(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Settings of calls that a source does not make."""
    for field, reward in _rewards(spec):
        kind = _kind(reward)
        unread = [
            n for n in _ALL if n not in _READ.get(kind, ()) and getattr(reward, n) is not None
        ]
        for name in unread:
            why = _WHY.get(kind, f"{kind} answers at once, from what it is given")
            yield Problem(
                field=f"{field}.{_NAMES[name]}",
                reason="NotUsedByReward",
                message=f"{_NAMES[name]} is not read: {why}",
                fix="leave it out",
            )
        if reward.scope == "Group" and reward.batch_size is not None:
            yield Problem(
                field=f"{field}.batchSize",
                reason="NotUsedByReward",
                message="with scope Group a call has the samples of one group, whatever batchSize says",
                fix="leave it out",
            )


def comparisons_have_a_group(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Samples are compared with their siblings: by a source that can, in training, in groups of at least two."""
    train = spec.train
    for index, reward in enumerate(train.rewards if train else ()):
        if train is None or reward.scope != "Group":
            continue
        field = f"spec.train.rewards[{index}].scope"
        if (kind := _kind(reward)) not in _COMPARES:
            yield Problem(
                field=field,
                reason="NotUsedByReward",
                message=f"{kind} looks at each sample by itself and compares nothing",
                fix="use python, a plugin or the builtin judge, or leave scope out",
            )
        if train.algorithm.is_online and train.algorithm.num_samples < 2:
            yield Problem(
                field=field,
                reason="GroupOfOne",
                message="it compares the samples of a group, and a prompt has one sample",
                fix=f"sample at least two (spec.train.algorithm.{train.algorithm.chosen})",
            )


def evaluations_compare_nothing(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The mean of a comparison within groups is the same for every model."""
    lent = [one for one in (spec.train.rewards if spec.train else ()) if one.scope == "Group"]
    for index, item in enumerate(spec.evaluations):
        suite = item.suite
        own = [place for place, one in enumerate(suite.rewards) if one.scope == "Group"]
        for place in own:
            yield Problem(
                field=f"spec.evaluations[{index}].suite.rewards[{place}].scope",
                reason="NotUsedByEvaluation",
                message="a comparison within groups has the same mean for every model: it measures nothing",
                fix="score each sample by itself: leave scope out",
            )
        if lent and suite.data is not None and not suite.rewards:
            yield Problem(
                field=f"spec.evaluations[{index}].suite.rewards",
                reason="MissingReward",
                message=f"it would score with train.rewards, of which {reward_name(lent[0])!r} compares samples of a group",
                fix="give it rewards of its own, such as suite.rewards: [{builtin: {name: exact-match}}]",
            )


def _kind(reward: Reward) -> str:
    if reward.builtin is not None:
        return reward.builtin.name
    return "a judge's model" if reward.judge is not None else reward.chosen


def _lists(spec: RolloutRunSpec) -> Iterator[tuple[str, Sequence[Reward]]]:
    if spec.train is not None:
        yield "spec.train.rewards", spec.train.rewards
    for index, item in enumerate(spec.evaluations):
        yield f"spec.evaluations[{index}].suite.rewards", item.suite.rewards


def _rewards(spec: RolloutRunSpec) -> Iterator[tuple[str, Reward]]:
    for field, rewards in _lists(spec):
        for index, reward in enumerate(rewards):
            yield f"{field}[{index}]", reward


RULES = (
    reward_bounds_are_ranges,
    gates_hold_something,
    calls_are_made,
    comparisons_have_a_group,
    evaluations_compare_nothing,
)
