"""Plugins in processes of their own: where a run finds them, and where they can run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.data import PluginRows
from rollout_api.v1alpha1.environment import Plugin, PluginSource, Reward
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.run import RolloutRunSpec

NamedPlugin = Plugin | PluginSource | PluginRows
"""A plugin as a manifest names it: where it is, and its parameters."""
Named = tuple[str, NamedPlugin]
"""A field, and the plugin that it names."""
_DIGEST = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")
_SHOWN_MAX = 200


def plugins_run_here(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """In a cluster a plugin is a container; elsewhere it lies in the run's code."""
    for field, plugin in (*find_plugins(spec), *find_tracker_plugins(spec.tracking)):
        contained = isinstance(plugin, Plugin) and plugin.container is not None
        if facts.platform == "cluster" and not contained:
            yield _no_folder(field, plugin)
        elif facts.platform == "local" and contained:
            fix = "name the plugin's folder with path, or run in a cluster"
            yield not_supported(f"{field}.container", "a plugin's container on one machine", fix)
        elif not contained and spec.code is None:
            yield Problem(
                field=f"{field}.path",
                reason="MissingCode",
                message="a plugin is a folder of the run's code, and spec.code is not set",
                fix="set code: {path: ...} to a folder that holds the plugin's",
            )


def images_have_digests(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A tag may be another program tomorrow, or in another pod."""
    for field, plugin in find_plugins(spec):
        container = plugin.container if isinstance(plugin, Plugin) else None
        if container is not None and _DIGEST.fullmatch(container.image) is None:
            yield Problem(
                field=f"{field}.container.image",
                reason="MissingDigest",
                message=f"{container.image[:_SHOWN_MAX]!r} has no digest, so that it names no one program",
                fix="name the image by its digest, ...@sha256: and 64 hexadecimal digits",
            )


def container_names_are_apart(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A plugin is one process with one set of parameters, wherever a run names it."""
    first: dict[str, tuple[str, Plugin]] = {}
    for field, plugin in find_plugins(spec):
        if not isinstance(plugin, Plugin) or plugin.container is None:
            continue
        name = plugin.container.name
        place, known = first.setdefault(name, (field, plugin))
        if known != plugin:
            yield Problem(
                field=f"{field}.container.name",
                reason="DuplicatePlugin",
                message=f"{name!r} is also the plugin of {place}, with another image, other parameters or resources",
                fix="name it there and here in the same way, or build the other one with a name of its own",
            )


def tools_have_schemas(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What stands in prompts is JSON that says which arguments there are."""
    environment = spec.train.environment if spec.train is not None else None
    for index, plugin in enumerate(() if environment is None else environment.tool_plugins):
        tools = () if plugin.container is None else plugin.container.tools
        for place, tool in enumerate(tools):
            if not _is_schema(tool.parameters):
                field = f"spec.train.environment.toolPlugins[{index}].container.tools[{place}]"
                yield Problem(
                    field=f"{field}.parameters",
                    reason="NoSchema",
                    message=f"{tool.parameters[:_SHOWN_MAX]!r} is no JSON Schema of an object",
                    fix="take what rollout plugins show FOLDER --tools prints",
                )


def _is_schema(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("type") == "object"


def find_containers(spec: RolloutRunSpec) -> tuple[Plugin, ...]:
    """The plugins that are containers, each once, in the order in which they are named."""
    found: dict[str, Plugin] = {}
    for _, plugin in find_plugins(spec):
        if isinstance(plugin, Plugin) and plugin.container is not None:
            found.setdefault(plugin.container.name, plugin)
    return tuple(found.values())


def find_plugins(spec: RolloutRunSpec) -> Iterator[Named]:
    """Each plugin that decides what a run is, with its field: all but those that are only told of it."""
    train = spec.train
    if train is not None and train.data is not None and train.data.plugin is not None:
        yield "spec.train.data.plugin", train.data.plugin
    environment = None if train is None else train.environment
    if environment is not None and environment.plugin is not None:
        yield "spec.train.environment.plugin", environment.plugin
    for index, one in enumerate(() if environment is None else environment.tool_plugins):
        yield f"spec.train.environment.toolPlugins[{index}]", one
    yield from _of_rewards(() if train is None else train.rewards, "spec.train.rewards")
    for index, item in enumerate(spec.evaluations):
        if item.suite.plugin is not None:
            yield f"spec.evaluations[{index}].suite.plugin", item.suite.plugin
        if item.suite.data is not None and item.suite.data.plugin is not None:
            yield f"spec.evaluations[{index}].suite.data.plugin", item.suite.data.plugin
        yield from _of_rewards(item.suite.rewards, f"spec.evaluations[{index}].suite.rewards")


def find_tracker_plugins(tracking: Sequence[Tracking]) -> Iterator[tuple[str, PluginSource]]:
    """Those that are told of its steps."""
    for index, item in enumerate(tracking):
        if item.plugin is not None:
            yield f"spec.tracking[{index}].plugin", item.plugin


def _no_folder(field: str, plugin: NamedPlugin) -> Problem:
    if isinstance(plugin, Plugin):
        fix = "build an image of it and name that: container: {name: ..., image: ...@sha256:...}"
        return not_supported(f"{field}.path", "a plugin's folder in a cluster", fix)
    if isinstance(plugin, PluginRows):
        fix = "write its rows to a file of JSON lines, and name it in jsonl"
        return not_supported(field, "data of a plugin in a cluster", fix)
    fix = "name the function or class with python, or run on one machine: rewards, environments and tools may be containers"
    return not_supported(field, "a plugin of this kind in a cluster", fix)


def _of_rewards(rewards: Sequence[Reward], field: str) -> Iterator[tuple[str, Plugin]]:
    for index, reward in enumerate(rewards):
        if reward.plugin is not None:
            yield f"{field}[{index}].plugin", reward.plugin


RULES = (
    plugins_run_here,
    images_have_digests,
    container_names_are_apart,
    tools_have_schemas,
)
