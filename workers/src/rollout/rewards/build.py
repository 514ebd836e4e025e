"""From the API's ``rewards`` to a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rollout.common.parameters import given_parameters
from rollout.errors import SpecError
from rollout.models.roles import reward_role
from rollout.rewards.builtins import COUNTS, build_builtin
from rollout.rewards.pipeline import RewardPipeline
from rollout.rewards.source import RewardSource
from rollout_api.checks.environment.rewards import reward_name
from rollout_api.v1alpha1.environment import PluginSource, PythonFunction, Reward

DEADLINE_SHARE = 0.9
"""Of a batch's time some builtins may spend on waiting: then they say themselves whom they could not score."""
WAITING = frozenset({"judge", "code-tests"})


def build_rewards(
    rewards: Sequence[Reward],
    *,
    folders: Sequence[Path] = (),
    models: Mapping[str, Path] | None = None,
) -> RewardPipeline:
    """The pipeline of ``train.rewards`` (or a suite's); nothing is started yet.

    ``folders`` are where user code lies: the run's ``code/``, then the manifest's folder; ``models``
    the folders of reward models by role. Raises SpecError for an unknown builtin, a bad parameter, or
    a model that is not there.
    """
    return RewardPipeline(
        [build_reward_source(reward, folders=folders, models=models) for reward in rewards]
    )


def build_reward_source(
    reward: Reward,
    *,
    folders: Sequence[Path] = (),
    models: Mapping[str, Path] | None = None,
) -> RewardSource:
    """One source. Raises SpecError."""
    if reward.builtin is not None:
        return _builtin(reward)
    if reward.python is not None:
        return _python(reward, reward.python, folders)
    if reward.plugin is not None:
        return _plugin(reward, reward.plugin, folders)
    return _model(reward, models or {})


def _model(reward: Reward, models: Mapping[str, Path]) -> RewardSource:
    name = reward.name or "model"
    path = models.get(reward_role(name))
    if path is None:
        raise SpecError(
            f"reward {name}: its model is not there; reward models are named under train.rewards"
            " (an evaluation without rewards of its own uses the same)"
        )
    return RewardSource(
        name=name,
        weight=reward.weight,
        timeout_seconds=reward.timeout_seconds,
        module="rollout.learner.model.reward_source",
        function="ModelReward",
        parameters={"path": str(path)},
    )


def _builtin(reward: Reward) -> RewardSource:
    assert reward.builtin is not None
    given = given_parameters(f"reward {reward.builtin.name}", reward.builtin)
    if reward.builtin.name in WAITING:
        given.setdefault("deadlineSeconds", f"{DEADLINE_SHARE * reward.timeout_seconds:g}")
    build_builtin(reward.builtin.name, given)
    return RewardSource(
        name=reward.name or reward.builtin.name,
        weight=reward.weight,
        timeout_seconds=reward.timeout_seconds,
        builtin=reward.builtin.name,
        parameters=given,
        counts=COUNTS.get(reward.builtin.name),
    )


def _plugin(reward: Reward, source: PluginSource, folders: Sequence[Path]) -> RewardSource:
    from rollout.plugins.sidecar.named import open_plugin, reward_argument

    name = reward_name(reward)
    plugin = open_plugin(source, "reward", folders, f"reward {name}")
    return RewardSource(
        name=name,
        weight=reward.weight,
        timeout_seconds=reward.timeout_seconds,
        module="rollout.plugins.sidecar.reward",
        function="PluginReward",
        parameters={"plugin": reward_argument(plugin, source, reward.timeout_seconds)},
        counts="score",
    )


def _python(reward: Reward, python: PythonFunction, folders: Sequence[Path]) -> RewardSource:
    return RewardSource(
        name=reward.name or python.function.rsplit(".", 1)[-1],
        weight=reward.weight,
        timeout_seconds=reward.timeout_seconds,
        module=python.module,
        path=python.path,
        function=python.function,
        parameters=given_parameters(f"reward {python.function}", python),
        folders=tuple(folders),
    )
