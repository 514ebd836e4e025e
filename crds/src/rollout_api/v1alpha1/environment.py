"""What the policy acts in, and what it is given for it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Message, Name, OneOf, Real, Text, filled, many
from rollout_api.v1alpha1.common import Builtin, ModelSource, Parameters, ParameterSource
from rollout_api.v1alpha1.data import FilePath
from rollout_api.v1alpha1.pods.pods import Resources

Identifier = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
]


class PythonClass(ApiModel):
    """A class of the user's code (see `code`)."""

    module: Identifier
    """Python module to import, without a path."""
    class_name: Identifier
    """Class in it; an EnvBuilder."""
    parameters: Parameters = many(64, key="name")
    """Keyword arguments of its constructor, as text."""
    parameters_from: tuple[ParameterSource, ...] = many(8)
    """Objects that hold further arguments. Not supported by this version: refused."""


class PluginSource(ApiModel):
    """A plugin of the user's own, which runs in a process of its own; on one machine only."""

    path: FilePath
    """Folder of the run's code with its `plugin.yaml` (see `code`)."""
    parameters: Parameters = many(64, key="name")
    """What it is configured with, as text."""


PluginName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
]


PLUGINS_FOLDER = "/var/run/rollout/plugins"
"""In a pod: a folder of each plugin's, which its container and the actor's share."""


class PluginContainer(ApiModel):
    """A plugin as an image, which a container beside each actor runs; in a cluster only."""

    name: PluginName
    """Its name, as it says itself (`name` of its `plugin.yaml`); two plugins of a run have two names."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    """Its image by digest, `...@sha256:...`, which the runtime's `allowed.images` names; its own entry point is run."""
    resources: Resources | None = None
    """What the container gets. Unset: a tenth of a processor and 256 MiB are reserved, and no limit is set."""

    @property
    def folder(self) -> str:
        """Where its socket is, in its pod."""
        return f"{PLUGINS_FOLDER}/{self.name}"

    @property
    def socket(self) -> str:
        """Path of its Unix socket, in its pod."""
        return f"{self.folder}/socket"


class Plugin(OneOf):
    """A plugin of the user's own, which runs in a process of its own: a folder on one machine, in a cluster a container."""

    members: ClassVar[tuple[str, ...]] = ("path", "container")

    path: FilePath | None = None
    """Folder of the run's code with its `plugin.yaml` (see `code`); on one machine only."""
    container: PluginContainer | None = None
    """A container of the actors' pods; in a cluster only."""
    parameters: Parameters = many(64, key="name")
    """What it is configured with, as text."""

    @property
    def label(self) -> str:
        """The name of its container, or of its folder."""
        if self.container is not None:
            return self.container.name
        assert self.path is not None
        return self.path.rstrip("/").rsplit("/", 1)[-1]


class DeclaredTool(ApiModel):
    """A tool of a plugin as the policy sees it; actors take no plugin whose tools are others."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    ]
    """Its name, as the plugin says it; the policy sees the plugin's before it: shelf__area."""
    description: Message = ""
    """What the policy reads of it."""
    parameters: Text
    """JSON Schema of its arguments, an object, as JSON."""


class ToolContainer(PluginContainer):
    """A plugin of kind tool as an image, and the tools that it has: nobody but actors can ask it, and the plan names them."""

    tools: tuple[DeclaredTool, ...] = many(64, num_min=1, key="name")
    """Its tools, as `rollout plugins show FOLDER --tools` prints them."""


class ToolPlugin(Plugin):
    """A plugin of kind tool: a folder on one machine, in a cluster a container beside each actor."""

    container: ToolContainer | None = None
    """A container of the actors' pods; in a cluster only."""


class Verifier(ApiModel):
    """A program that judges what an agent left in its working folder."""

    command: tuple[Name, ...] = many(64, num_min=1)
    """What is run once the agent has ended. Exit code 0 is reward 1, and 1 is 0, unless it writes a number to /logs/verifier/reward.txt; any other end judges nothing."""
    files: tuple[FilePath, ...] = many(64)
    """Files and folders of the run's code that it finds in /tests, which the agent never sees."""
    timeout_seconds: int = filled(60, ge=1, le=100)
    """Longest time it may take; past it the episode is an infrastructure failure, never reward 0."""


class Agent(ApiModel):
    """A program with a loop of its own, which asks an endpoint that is its episode's alone; on one machine, and where the runtime has sandbox pods."""

    command: tuple[Name, ...] = many(64, num_min=1)
    """What is run for each episode, in a sandbox: a program of the system, or `python`. `{instruction}` in a word is the row's prompt, which is its standard input too."""
    files: tuple[FilePath, ...] = many(64)
    """Files and folders of the run's code that it finds in its working folder; nothing else of them is there."""
    verifier: Verifier | None = None
    """What judges an episode, as the reward `environment`. Unset: rewards see the last reply."""
    max_turns: int = filled(32, ge=1, le=64)
    """Replies of one episode; what is asked for beyond them is refused, and what there is is judged."""
    timeout_seconds: int = filled(600, ge=1, le=3600)
    """Time that the agent may use itself in one episode, that of the model left out; past it it is ended, and judged."""
    memory: bool = filled(default=False)
    """Whether it keeps something between episodes: its endpoint then answers `/v1/memory/get`, `put` and `search`."""
    image: Name | None = None
    """Image of its pods, with a python3 of 3.9 or newer, which the runtime's `allowed.images` names; in a cluster only. Unset: the runtime's `sandbox.image`."""


ServerName = Annotated[str, StringConstraints(max_length=32, pattern=r"^[a-z][a-z0-9]*$")]


class McpServer(ApiModel):
    """A program that offers tools by the Model Context Protocol over its standard input and output."""

    name: ServerName
    """Stands before the names of its tools, with two underscores between: shelf__area."""
    command: tuple[Name, ...] = many(64, num_min=1)
    """What is run, once an episode in a sandbox without network: a program of the system, or `python`."""
    files: tuple[FilePath, ...] = many(64)
    """Files and folders of the run's code that it finds in its working folder; nothing else of them is there."""


HttpHost = Annotated[
    str,
    StringConstraints(
        max_length=260,
        pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?$",
    ),
]


class HttpAccess(ApiModel):
    """What the tool `http` may reach."""

    hosts: tuple[HttpHost, ...] = many(64, num_min=1)
    """Names of public hosts, `host` for https or `host:port`; what else they lead to is refused."""


class Environment(OneOf):
    """One episode's world: it makes the conversation and takes the replies."""

    members: ClassVar[tuple[str, ...]] = ("builtin", "python", "plugin", "agent")

    builtin: Builtin | None = None
    """One that rollout ships: `single-turn`, `arithmetic`, `musique-search`, `treasure-hunt`, and, where the runtime has sandbox pods or on one machine, `code`."""
    python: PythonClass | None = None
    """An environment of the user's own."""
    plugin: Plugin | None = None
    """A plugin of kind environment, in any language."""
    agent: Agent | None = None
    """A program that speaks to an endpoint of its episode, OpenAI's chat completions or Anthropic's messages; on one machine, and where the runtime has sandbox pods."""
    tools: tuple[Name, ...] = many(64)
    """Tools that the policy may call: `calculator`, `search`; on one machine, and where the runtime has sandbox pods, python_exec, shell and file; or `module.function` of the user's code."""
    tool_plugins: tuple[ToolPlugin, ...] = many(8)
    """Plugins of kind tool, in any language, whose tools the policy may call."""
    mcp_servers: tuple[McpServer, ...] = many(8, key="name")
    """Servers whose tools the policy may call; on one machine, and where the runtime has sandbox pods."""
    http: HttpAccess | None = None
    """Gives the policy the tool `http`, which gets pages of these hosts; in a cluster of those that the runtime's `allowed.hosts` names, too."""


class PythonFunction(OneOf):
    """A function of the user's code, called with a batch: (prompts, completions, rows)."""

    members: ClassVar[tuple[str, ...]] = ("module", "path")

    module: Identifier | None = None
    """Module to import (see `code`)."""
    path: FilePath | None = None
    """A Python file beside the manifest; local runs only."""
    function: Identifier
    """Function in it; returns one float, or named floats, per completion."""
    parameters: Parameters = many(64, key="name")
    """Further keyword arguments, as text."""
    parameters_from: tuple[ParameterSource, ...] = many(8)
    """Objects that hold further arguments. Not supported by this version: refused."""


class JudgeModel(ApiModel):
    """A language model that the actors load, which says how likely each grade of an answer is."""

    model: ModelSource | None = None
    """Its weights, such as another run's. Unset: the run's reference, or else its model before training."""
    instructions: Text | None = None
    """Stands before the question and asks for one digit, 0 to 9, or with scope Group for A or B. Unset: ours."""
    shows_answer: bool = filled(default=True)
    """Whether it is shown the row's `answer`."""


class RewardGate(ApiModel):
    """What a reward must reach for the others to count."""

    at_least: Real
    """Smallest value that passes, before its weight."""
    else_total: Real | None = None
    """Whole reward of a completion that does not pass. Unset: this reward's own part, and nothing of the others."""


class Reward(OneOf):
    """One source of reward; the reward of a completion is the weighted sum over the sources."""

    members: ClassVar[tuple[str, ...]] = ("builtin", "python", "plugin", "model", "judge")

    builtin: Builtin | None = None
    """One that rollout ships: `exact-match`, `math-verify`, `length`, `format`, `environment`, `judge`; on one machine, and where the runtime has sandbox pods, also `code-tests`."""
    python: PythonFunction | None = None
    """The user's own function."""
    plugin: Plugin | None = None
    """A plugin of kind reward, in any language."""
    model: ModelSource | None = None
    """A reward model, such as the result of a run with `algorithm: {rm: {}}`."""
    judge: JudgeModel | None = None
    """A judge whose weights the actors load; by URL it is the builtin `judge`."""
    name: Name | None = None
    """Its name in metrics. Unset: the builtin's, function's, plugin's or run's name."""
    weight: Real = filled(1.0, ge=-1_000_000, le=1_000_000)
    """Factor in the sum; 0 only records it."""
    timeout_seconds: int = filled(60, ge=1, le=86_400)
    """Longest time for one batch; past it the batch is a `data` failure, never reward 0: a task's second ends the run."""
    gate: RewardGate | None = None
    """Lets the others count only where this one reaches a value; those after it are not asked about what did not pass."""
    at_least: Real | None = None
    """Least that it adds, after its weight."""
    at_most: Real | None = None
    """Most that it adds, after its weight."""
    scope: Literal["Sample", "Group"] = filled("Sample")
    """`Group`: it is called with all samples of one group, and compares them; refused in evaluations."""
    batch_size: int | None = Field(default=None, ge=1, le=65_536)
    """Most completions of one call. Unset: all that there are."""
    concurrency: int | None = Field(default=None, ge=1, le=256)
    """Calls at a time: processes of a function or plugin, requests to a judge. Unset: 1, of a judge 8."""
    retries: int | None = Field(default=None, ge=0, le=16)
    """Further tries of a call that failed for what lies outside, with growing pauses. Unset: 0, of a judge 5."""
    cache_entries: int | None = Field(default=None, ge=0, le=10_000_000)
    """Answers that are kept by the content they are about, the oldest first to go. Unset: 0, of a judge 65536."""
