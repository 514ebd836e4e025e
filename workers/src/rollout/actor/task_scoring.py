"""Which environment a task is played in and which rewards score it: training's, or its evaluation's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.environments.build import build_environment
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.environments.with_tools import ToolBuilder, tools_of
from rollout.errors import EngineError
from rollout.evaluations.build import build_suite
from rollout.models.roles import INITIAL
from rollout.plugins.author import code_folders
from rollout.protocol.messages import Task
from rollout.rewards.build import build_rewards
from rollout.rewards.pipeline import RewardPipeline
from rollout.seams import EnvBuilder
from rollout.tools.sources import require_planned
from rollout_api.worker import WorkerConfig

TRAINING = ("", "train")
BATCH = ("infer", "report")
"""The rows of an inference run, as the coordinator names them."""
CACHE_FOLDER = "rewards"
"""Of a run's folder: what its rewards said, by what it was about."""
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScoring:
    """Environments and rewards by (evaluation, split). ``start`` before use, ``close`` after."""

    environments: Mapping[Key, EnvBuilder]
    pipelines: Mapping[Key, RewardPipeline]

    def environment(self, task: Task) -> EnvBuilder:
        """Where the task is played."""
        return self.environments[_key(task, self.environments)]

    def pipeline(self, task: Task) -> RewardPipeline:
        """What scores the task."""
        return self.pipelines[_key(task, self.pipelines)]

    def start(self) -> None:
        """Load every reward. Raises SpecError naming the one that cannot be."""
        for pipeline in self.pipelines.values():
            pipeline.start()

    def close(self) -> None:
        """End the rewards' processes; idempotent."""
        for pipeline in self.pipelines.values():
            pipeline.close()


def _key(task: Task, known: Mapping[Key, object]) -> Key:
    key = TRAINING if task.evaluation is None else (task.evaluation, task.split)
    if key not in known:
        raise EngineError(
            f"task {task.task_id} is of evaluation {task.evaluation!r} ({task.split}), which is not in "
            "this actor's configuration: restart the actor"
        )
    return key


def build_task_scoring(config: WorkerConfig, versions: Sequence[Path] = ()) -> TaskScoring:
    """The judges of a run; nothing is started yet. Raises SpecError.

    ``versions``: folders of code with versions of its plugins, which are taken instead of those that it began with.
    """
    spec, folders = config.spec, (*versions, *code_folders(config))
    cache = Path(config.layout.run_dir) / CACHE_FOLDER
    models = {role: Path(path) for role, path in config.resolved.models.items()}
    models[INITIAL] = Path(config.resolved.model_path)
    train = spec.train
    environments: dict[Key, EnvBuilder] = {}
    pipelines: dict[Key, RewardPipeline] = {}
    if config.resolved.plugin_digests and not versions:
        from rollout.plugins.sidecar.named import require_planned_plugins

        require_planned_plugins(config.resolved.plugin_digests, spec, folders)
    if train is not None and train.algorithm.is_online:
        environments[TRAINING] = build_environment(train.environment, folders=folders)
        require_planned(config.resolved.tool_digests, tools_of(environments[TRAINING]))
        pipelines[TRAINING] = build_rewards(
            train.rewards, folders=folders, models=models, cache_folder=cache
        )
    if spec.infer is not None:
        environments[BATCH] = SingleTurnBuilder()
        pipelines[BATCH] = RewardPipeline(())
    for index, evaluation in enumerate(spec.evaluations):
        suite = build_suite(
            evaluation, index, train=train, seed=spec.seed, folders=folders, models=models
        )
        environments[suite.name, suite.split] = suite.environment()
        pipelines[suite.name, suite.split] = RewardPipeline(suite.rewards, cache)
    if config.resolved.plugin_digests:
        _require_declared(environments.values())
    return TaskScoring(environments=environments, pipelines=pipelines)


def _require_declared(environments: Iterable[EnvBuilder]) -> None:
    """Ask the plugins of tools that only actors can ask. Raises SpecError for one whose tools are others than the run says."""
    from rollout.plugins.sidecar.kinds.tool import PluginToolSource

    for environment in environments:
        for source in environment.sources if isinstance(environment, ToolBuilder) else ():
            if isinstance(source, PluginToolSource):
                source.require_declared()
