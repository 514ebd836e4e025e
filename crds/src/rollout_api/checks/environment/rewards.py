"""What the policy acts in and what it earns: an RL run without a usable reward cannot learn."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.catalog import (
    ENVIRONMENTS,
    ENVIRONMENTS_WITH_DATA,
    REWARDS,
    suggest,
)
from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.environment import Reward
from rollout_api.v1alpha1.run import RolloutRunSpec


def online_runs_have_rewards(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """PPO and GRPO learn from reward only; distillation has a teacher."""
    train = spec.train
    if train and train.algorithm.traits.rewards and not train.rewards:
        yield Problem(
            field="spec.train.rewards",
            reason="MissingReward",
            message=f"{train.algorithm.chosen} learns from reward, and no reward is named",
            fix="add one, such as rewards: [{builtin: {name: exact-match}}]",
        )


def offline_runs_have_no_rewards(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A reward that nothing reads is a mistake, not a preference."""
    train = spec.train
    if train is None or train.algorithm.is_online:
        return
    if train.rewards:
        yield Problem(
            field="spec.train.rewards",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} learns from the data and reads no rewards",
            fix="remove rewards, or use grpo or ppo",
        )


def some_reward_counts(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Weights of 0 only record, unless a gate states a total."""
    train = spec.train
    if train and train.rewards and not any(_counts(reward) for reward in train.rewards):
        yield Problem(
            field="spec.train.rewards[0].weight",
            reason="NoRewardCounts",
            message="every reward has weight 0, so that the reward is always 0",
            fix="give at least one reward a weight, such as '1.0'",
        )


def reward_names_are_distinct(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Metrics are kept by reward name."""
    seen: set[str] = set()
    for index, reward in enumerate(spec.train.rewards if spec.train else ()):
        name = reward_name(reward)
        if name in seen:
            yield Problem(
                field=f"spec.train.rewards[{index}].name",
                reason="DuplicateName",
                message=f"two rewards are called {name!r}; their metrics could not be told apart",
                fix="give one of them a name",
            )
        seen.add(name)


def builtin_rewards_exist(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A misspelt reward would otherwise be found after the model was loaded."""
    for index, reward in enumerate(spec.train.rewards if spec.train else ()):
        if reward.builtin and reward.builtin.name not in REWARDS:
            yield Problem(
                field=f"spec.train.rewards[{index}].builtin.name",
                reason="UnknownPlugin",
                message=f"there is no built-in reward {reward.builtin.name!r}",
                fix=suggest(reward.builtin.name, REWARDS),
            )


def builtin_environment_exists(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The same for environments."""
    environment = spec.train.environment if spec.train else None
    if environment and environment.builtin and environment.builtin.name not in ENVIRONMENTS:
        yield Problem(
            field="spec.train.environment.builtin.name",
            reason="UnknownPlugin",
            message=f"there is no built-in environment {environment.builtin.name!r}",
            fix=suggest(environment.builtin.name, ENVIRONMENTS),
        )


def there_is_data(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Somebody must bring prompts: the data, or the environment."""
    train = spec.train
    if train is None or train.data is not None or _brings_data(spec):
        return
    yield Problem(
        field="spec.train.data",
        reason="MissingData",
        message="neither train.data nor an environment with data of its own is given",
        fix="add data: {jsonl: {uri: ...}}, or environment: {builtin: {name: arithmetic}}",
    )


def data_has_one_source(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Data beside an environment that makes its own would never be read."""
    environment = spec.train.environment if spec.train else None
    if (
        spec.train
        and spec.train.data
        and environment
        and environment.builtin
        and _brings_data(spec)
    ):
        yield Problem(
            field="spec.train.data",
            reason="NotUsedByEnvironment",
            message=f"the environment {environment.builtin.name!r} makes its own rows",
            fix="remove train.data, or use environment: {builtin: {name: single-turn}}",
        )


def user_code_can_be_found(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A module is importable only when the run says where the code lies; files do not travel."""
    for index, reward in enumerate(spec.train.rewards if spec.train else ()):
        field = f"spec.train.rewards[{index}].python"
        if reward.python and reward.python.module and spec.code is None:
            yield Problem(
                field=f"{field}.module",
                reason="MissingCode",
                message=f"the module {reward.python.module!r} is not part of rollout and spec.code is not set",
                fix="set spec.code (path locally; configMap, image or wheel in a cluster), or use path",
                severity=Severity.warning if facts.platform == "local" else Severity.error,
            )
        if reward.python and reward.python.path and facts.platform == "cluster":
            yield Problem(
                field=f"{field}.path",
                reason="LocalOnly",
                message="a path beside the manifest does not exist in a pod",
                fix="put the file into a ConfigMap and use code: {configMap: ...} with module",
            )


def _counts(reward: Reward) -> bool:
    stated = 0.0 if reward.gate is None else reward.gate.else_total
    return bool(reward.weight or stated)


def reward_name(reward: Reward) -> str:
    """The name a reward has in metrics."""
    if reward.name:
        return reward.name
    if reward.builtin:
        return reward.builtin.name
    if reward.python:
        return reward.python.function
    if reward.plugin:
        return reward.plugin.label
    return reward.chosen


def _brings_data(spec: RolloutRunSpec) -> bool:
    environment = spec.train.environment if spec.train else None
    if environment is None:
        return False
    if environment.builtin is None:
        return environment.plugin is None
    return environment.builtin.name in ENVIRONMENTS_WITH_DATA or (
        environment.builtin.name not in ENVIRONMENTS
    )


RULES = (
    online_runs_have_rewards,
    offline_runs_have_no_rewards,
    some_reward_counts,
    reward_names_are_distinct,
    builtin_rewards_exist,
    builtin_environment_exists,
    there_is_data,
    data_has_one_source,
    user_code_can_be_found,
)
