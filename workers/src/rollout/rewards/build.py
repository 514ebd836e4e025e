"""From the API's ``rewards`` to a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rollout.common.parameters import given_parameters
from rollout.errors import SpecError
from rollout.models.roles import INITIAL, REFERENCE, judge_role, reward_role
from rollout.rewards.builtins import COUNTS, build_builtin
from rollout.rewards.pipeline import RewardPipeline
from rollout.rewards.source import PassMark, RewardSource
from rollout_api.checks.environment.rewards import reward_name
from rollout_api.v1alpha1.environment import JudgeModel, Plugin, PythonFunction, Reward

DEADLINE_SHARE = 0.9
"""Of a batch's time some builtins may spend on waiting: then they say themselves whom they could not score."""
WAITING = frozenset({"judge", "code-tests"})
JUDGE = "judge"
OWN_FIELDS = {"concurrency": "concurrency", "retries": "retries", "perGroup": "scope: Group"}
"""Fields of a reward that some builtins are given as parameters: not to be written as such."""
JUDGE_RETRIES = 5
JUDGE_CACHE_ENTRIES = 65_536


def build_rewards(
    rewards: Sequence[Reward],
    *,
    folders: Sequence[Path] = (),
    models: Mapping[str, Path] | None = None,
    cache_folder: Path | None = None,
) -> RewardPipeline:
    """The pipeline of ``train.rewards`` (or a suite's); nothing is started yet.

    ``folders`` are where user code lies: the run's ``code/``, then the manifest's folder; ``models``
    the folders of reward models by role; ``cache_folder`` where answers are kept (None: in memory). Raises SpecError for
    an unknown builtin, a bad parameter, or a model that is not there.
    """
    sources = [build_reward_source(reward, folders=folders, models=models) for reward in rewards]
    return RewardPipeline(sources, cache_folder)


def build_reward_source(
    reward: Reward,
    *,
    folders: Sequence[Path] = (),
    models: Mapping[str, Path] | None = None,
) -> RewardSource:
    """One source. Raises SpecError."""
    if reward.builtin is not None:
        made = _builtin(reward)
    elif reward.python is not None:
        made = _python(reward, reward.python, folders)
    elif reward.plugin is not None:
        made = _plugin(reward, reward.plugin, folders)
    elif reward.judge is not None:
        made = _judge(reward, reward.judge, models or {})
    else:
        made = _model(reward, models or {})
    gate = reward.gate
    asks_itself = reward.builtin is not None and reward.builtin.name in WAITING
    by_url = reward.builtin is not None and reward.builtin.name == JUDGE
    judges = by_url or reward.judge is not None
    entries = JUDGE_CACHE_ENTRIES if judges else 0
    return replace(
        made,
        weight=reward.weight,
        timeout_seconds=reward.timeout_seconds,
        gate=None if gate is None else PassMark(at_least=gate.at_least, else_total=gate.else_total),
        at_least=reward.at_least,
        at_most=reward.at_most,
        per_group=reward.scope == "Group",
        batch_size=reward.batch_size,
        concurrency=1 if asks_itself else reward.concurrency or 1,
        retries=0 if by_url else reward.retries or 0,
        cache_entries=entries if reward.cache_entries is None else reward.cache_entries,
    )


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
        module="rollout.learner.model.reward_source",
        function="ModelReward",
        parameters={"path": str(path)},
    )


def _judge(reward: Reward, judge: JudgeModel, models: Mapping[str, Path]) -> RewardSource:
    name = reward_name(reward)
    roles = (REFERENCE, INITIAL) if judge.model is None else (judge_role(name),)
    path = next((models[role] for role in roles if role in models), None)
    if path is None:
        raise SpecError(
            f"reward {name}: its model is not there; judges are named under train.rewards (an evaluation without"
            " rewards of its own uses the same)"
        )
    given = {
        "path": str(path),
        "instructions": judge.instructions or "",
        "reference": str(judge.shows_answer).lower(),
        "per_group": str(reward.scope == "Group").lower(),
        "deadline_seconds": f"{DEADLINE_SHARE * reward.timeout_seconds:g}",
    }
    return RewardSource(
        name=name,
        module="rollout.engines.judging",
        function="ModelJudge",
        parameters=given,
        counts="score",
    )


def _builtin(reward: Reward) -> RewardSource:
    assert reward.builtin is not None
    name = reward.builtin.name
    given = given_parameters(f"reward {name}", reward.builtin)
    if name in WAITING:
        given.setdefault("deadlineSeconds", f"{DEADLINE_SHARE * reward.timeout_seconds:g}")
        given |= _own_fields(reward, name, given)
    build_builtin(name, given)
    return RewardSource(
        name=reward.name or name, builtin=name, parameters=given, counts=COUNTS.get(name)
    )


def _own_fields(reward: Reward, name: str, given: Mapping[str, str]) -> dict[str, str]:
    """What a builtin that asks others does itself: calls at a time, tries of a call, and whether it compares."""
    for field, beside in OWN_FIELDS.items():
        if field in given:
            raise SpecError(
                f"reward {name}: {field} is no parameter of it; write {beside} beside builtin"
            )
    found = {} if reward.concurrency is None else {"concurrency": str(reward.concurrency)}
    if name == JUDGE:
        retries = JUDGE_RETRIES if reward.retries is None else reward.retries
        found |= {"retries": str(retries), "perGroup": str(reward.scope == "Group").lower()}
    return found


def _plugin(reward: Reward, source: Plugin, folders: Sequence[Path]) -> RewardSource:
    from rollout.plugins.sidecar.named import open_plugin, reward_argument

    name = reward_name(reward)
    plugin = open_plugin(source, "reward", folders, f"reward {name}")
    return RewardSource(
        name=name,
        module="rollout.plugins.sidecar.reward",
        function="PluginReward",
        parameters={"plugin": reward_argument(plugin, source, reward.timeout_seconds)},
        counts="score",
    )


def _python(reward: Reward, python: PythonFunction, folders: Sequence[Path]) -> RewardSource:
    return RewardSource(
        name=reward.name or python.function.rsplit(".", 1)[-1],
        module=python.module,
        path=python.path,
        function=python.function,
        parameters=given_parameters(f"reward {python.function}", python),
        folders=tuple(folders),
    )
