"""Tools that the policy may call: those that are there, each once, and where what the policy writes can be kept in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rollout_api.checks.environment.agents import FIELD, owns_its_loop, plays_harbor
from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.environment import Environment, Reward
from rollout_api.v1alpha1.run import RolloutRunSpec

TOOLS = ("calculator", "file", "python_exec", "search", "shell")
SANDBOXED = frozenset({"file", "python_exec", "shell"})
"""Those that run what the policy writes."""
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


SANDBOXED_ENVIRONMENTS = frozenset({"code"})
SANDBOXED_REWARDS = frozenset({"code-tests"})
SANDBOXED_SUITES = frozenset({"humaneval"})


def is_function(name: str) -> bool:
    """Whether it names a function of the user's code: ``module.function``."""
    return _FUNCTION.fullmatch(name) is not None


def tools_are_there(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Unknown tools, and tools that are named twice."""
    environment = spec.train.environment if spec.train else None
    names = environment.tools if environment else ()
    for index, name in enumerate(names):
        field = f"spec.train.environment.tools[{index}]"
        if name in names[:index]:
            yield Problem(
                field=field,
                reason="DuplicateName",
                message=f"tool {name!r} is named twice",
                fix="remove one",
            )
        elif name not in TOOLS and not is_function(name):
            fix = f"take {', '.join(TOOLS)}, or module.function of the run's code"
            if name == "http":
                fix = "name the hosts instead: environment.http: {hosts: [...]}"
            yield not_supported(field, f"a tool {name!r}", fix)


def servers_are_apart(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Servers of one name."""
    environment = spec.train.environment if spec.train else None
    names = [one.name for one in environment.mcp_servers] if environment else []
    for index, name in enumerate(names):
        field = f"spec.train.environment.mcpServers[{index}]"
        if name in names[:index]:
            yield Problem(
                field=f"{field}.name",
                reason="DuplicateName",
                message=f"server {name!r} is named twice",
                fix="give each a name of its own",
            )


def tools_are_for_sampling(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What learns from rows calls nothing."""
    train = spec.train
    if train is None or train.environment is None or train.algorithm.is_online:
        return
    environment = train.environment
    for field in _given(environment):
        yield Problem(
            field=f"spec.train.environment.{field}",
            reason="NotUsedByAlgorithm",
            message=f"{train.algorithm.chosen} learns from the data and samples nothing that could call a tool",
            fix=f"remove {field}, or use grpo or ppo",
        )


def _given(environment: Environment) -> Iterator[str]:
    """The fields by which an environment is given tools."""
    given = {
        "tools": environment.tools,
        "toolPlugins": environment.tool_plugins,
        "mcpServers": environment.mcp_servers,
        "http": environment.http,
    }
    yield from (name for name, some in given.items() if some)


def find_in_pods(spec: RolloutRunSpec) -> Iterator[tuple[str, str]]:
    """Field and name of all that runs in sandboxes, in a cluster in sandbox pods."""
    environment = spec.train.environment if spec.train else None
    for index, name in enumerate(environment.tools if environment else ()):
        if name in SANDBOXED:
            yield f"spec.train.environment.tools[{index}]", name
    for index, server in enumerate(environment.mcp_servers if environment else ()):
        yield f"spec.train.environment.mcpServers[{index}]", f"MCP server {server.name!r}"
    yield from find_sandboxed(spec)


def actors_max(spec: RolloutRunSpec) -> int:
    """Most actors that the run asks for, as it stands."""
    scale = spec.actors.autoscale
    return max(1, spec.actors.replicas, 0 if scale is None else scale.max)


def pods_of_a_group(spec: RolloutRunSpec) -> int:
    """Sandbox pods that a group's episodes keep while they wait for each other; 0: none does."""
    train = spec.train
    environment = train.environment if train else None
    if train is None or environment is None or spec.numerics.mode == "Fast":
        return 0
    tools = environment.mcp_servers or SANDBOXED.intersection(environment.tools)
    kept = owns_its_loop(environment) or tools
    return train.algorithm.num_samples if kept and train.algorithm.is_online else 0


def find_sandboxed(spec: RolloutRunSpec) -> Iterator[tuple[str, str]]:
    """Field and name of each environment, reward and suite that runs what the policy writes."""
    environment = spec.train.environment if spec.train else None
    played = environment.builtin if environment else None
    if played is not None and played.name in SANDBOXED_ENVIRONMENTS:
        yield "spec.train.environment.builtin.name", f"environment {played.name}"
    if environment is not None and environment.agent is not None:
        yield f"{FIELD}.agent", "an agent with a loop of its own"
    if environment is not None and plays_harbor(environment.python):
        yield f"{FIELD}.python", "tasks in Harbor's form, whose agent owns its loop,"
    yield from _rewards(spec.train.rewards if spec.train else (), "spec.train.rewards")
    for index, item in enumerate(spec.evaluations):
        field, builtin = f"spec.evaluations[{index}].suite", item.suite.builtin
        if builtin is not None and builtin.name in SANDBOXED_SUITES:
            yield f"{field}.builtin.name", builtin.name
        yield from _rewards(item.suite.rewards, f"{field}.rewards")


def _rewards(rewards: Sequence[Reward], field: str) -> Iterator[tuple[str, str]]:
    for index, reward in enumerate(rewards):
        if reward.builtin is not None and reward.builtin.name in SANDBOXED_REWARDS:
            yield f"{field}[{index}].builtin.name", reward.builtin.name


def agents_bring_their_tools(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A program with a loop of its own calls what it has itself."""
    environment = spec.train.environment if spec.train else None
    if environment is None or not owns_its_loop(environment):
        return
    for field in _given(environment):
        fix = f"remove {field}, and let the agent bring its tools"
        yield not_supported(f"spec.train.environment.{field}", f"{field} beside an agent", fix)


RULES = (
    agents_bring_their_tools,
    tools_are_there,
    servers_are_apart,
    tools_are_for_sampling,
)
