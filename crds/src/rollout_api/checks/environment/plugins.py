"""Plugins in processes of their own: where a run finds them, and where they can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.environment import PluginSource, Reward
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.run import RolloutRunSpec


def plugins_run_here(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """In a cluster no plugin runs yet; elsewhere it lies in the run's code."""
    for field, _ in (*find_plugins(spec), *find_tracker_plugins(spec.tracking)):
        if facts.platform == "cluster":
            fix = "name the function or class with python, or run on one machine"
            yield not_supported(
                field, "a plugin in a cluster, which has no sidecars for it yet,", fix
            )
        elif spec.code is None:
            yield Problem(
                field=f"{field}.path",
                reason="MissingCode",
                message="a plugin is a folder of the run's code, and spec.code is not set",
                fix="set code: {path: ...} to a folder that holds the plugin's",
            )


def find_plugins(spec: RolloutRunSpec) -> Iterator[tuple[str, PluginSource]]:
    """Each plugin that decides what a run is, with its field: all but those that are only told of it."""
    train = spec.train
    environment = None if train is None else train.environment
    if environment is not None and environment.plugin is not None:
        yield "spec.train.environment.plugin", environment.plugin
    for index, one in enumerate(() if environment is None else environment.tool_plugins):
        yield f"spec.train.environment.toolPlugins[{index}]", one
    yield from _of_rewards(() if train is None else train.rewards, "spec.train.rewards")
    for index, item in enumerate(spec.evaluations):
        if item.suite.plugin is not None:
            yield f"spec.evaluations[{index}].suite.plugin", item.suite.plugin
        yield from _of_rewards(item.suite.rewards, f"spec.evaluations[{index}].suite.rewards")


def find_tracker_plugins(tracking: Sequence[Tracking]) -> Iterator[tuple[str, PluginSource]]:
    """Those that are told of its steps."""
    for index, item in enumerate(tracking):
        if item.plugin is not None:
            yield f"spec.tracking[{index}].plugin", item.plugin


def _of_rewards(rewards: Sequence[Reward], field: str) -> Iterator[tuple[str, PluginSource]]:
    for index, reward in enumerate(rewards):
        if reward.plugin is not None:
            yield f"{field}[{index}].plugin", reward.plugin


RULES = (plugins_run_here,)
