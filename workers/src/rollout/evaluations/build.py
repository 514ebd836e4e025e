"""From the API's ``evaluations`` to suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from rollout.common.parameters import given_parameters
from rollout.data.build import open_source, split_data
from rollout.data.subset import Part, SubsetSource
from rollout.environments.build import build_environment
from rollout.environments.plugin import RowsSource
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.environments.with_tools import add_tools
from rollout.errors import SpecError
from rollout.evaluations.builtin.registry import BUILTINS
from rollout.evaluations.metrics import Metric
from rollout.evaluations.suites import Context, Suite
from rollout.plugins.user_code import load_object, refusing_failures
from rollout.rewards.build import build_reward_source
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource, EnvBuilder
from rollout_api.checks.catalog import ENVIRONMENTS_WITH_DATA
from rollout_api.checks.environment.evaluations import evaluation_name, split_of
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.environment import PluginSource, PythonClass
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.training.train import Train

PLUGIN_SECONDS = 60.0
"""Of a plugin's suite, for the scores of one batch."""


def build_suite(
    item: SuiteRun,
    index: int = 0,
    *,
    train: Train | None = None,
    seed: int = 0,
    base_dir: Path | None = None,
    folders: Sequence[Path] = (),
    models: Mapping[str, Path] | None = None,
) -> Suite:
    """One evaluation's suite; nothing is read or started yet.

    ``index`` is its place in ``evaluations`` (it may have no name); ``train`` lends environment and
    rewards where the suite has none; ``folders`` are where user code lies, ``models`` where reward
    models lie, by role. Raises SpecError.
    """
    context = Context(
        split=cast("Part", split_of(item).lower()),
        seed=seed,
        base_dir=base_dir or Path(),
        models=models or {},
        trains=train is not None,
    )
    name = evaluation_name(item, index)
    suite = item.suite
    if suite.builtin is not None:
        built = _builtin(suite.builtin.name, name, item, context, train, folders)
    elif suite.data is not None:
        built = _data(name, item, context, train, folders)
    elif suite.plugin is not None:
        built = _plugin(name, suite.plugin, context, folders)
    else:
        assert suite.python is not None
        built = _python(name, suite.python, context, folders)
    return replace(built, source=lambda: limit_source(built.source(), item.max_prompts))


def new_tokens_of(item: SuiteRun) -> int | None:
    """The longest completion that the manifest, or else the suite, asks for; None leaves it to the run. Raises SpecError."""
    if item.max_new_tokens is not None or item.suite.builtin is None:
        return item.max_new_tokens
    return build_suite(item).sampling.max_new_tokens


def limit_source(source: DataSource, rows_max: int | None) -> DataSource:
    """The first ``rows_max`` rows; None means all."""
    if rows_max is None or rows_max >= len(source):
        return source
    return SubsetSource(source, range(rows_max), f"first-{rows_max}")


def _builtin(
    builtin: str,
    name: str,
    item: SuiteRun,
    context: Context,
    train: Train | None,
    folders: Sequence[Path],
) -> Suite:
    if builtin not in BUILTINS:
        raise SpecError(f"no suite {builtin!r}; there are {', '.join(sorted(BUILTINS))}")
    assert item.suite.builtin is not None
    given = given_parameters(f"suite {builtin}", item.suite.builtin)
    lent = replace(context, environment=_lent_parameters(builtin, train))
    built = BUILTINS[builtin](name, given, lent)
    own = train.environment if train else None
    if own is None or own.builtin is None or own.builtin.name != builtin:
        return built
    return replace(built, environment=lambda: add_tools(built.environment(), own, folders))


def _lent_parameters(builtin: str, train: Train | None) -> Mapping[str, str]:
    """The training's own parameters of the environment with this name."""
    environment = train.environment.builtin if train and train.environment else None
    if environment is None or environment.name != builtin:
        return {}
    return given_parameters(f"environment {builtin}", environment)


def _data(
    name: str, item: SuiteRun, context: Context, train: Train | None, folders: Sequence[Path]
) -> Suite:
    data = item.suite.data
    assert data is not None
    rewards = item.suite.rewards or (train.rewards if train else ())
    if not rewards:
        raise SpecError(
            f"evaluation {name}: nothing says how answers are scored; add suite.rewards, such as "
            f"[{{builtin: {{name: exact-match}}}}]"
        )
    sources = [
        build_reward_source(reward, folders=folders, models=context.models) for reward in rewards
    ]
    return Suite(
        name=name,
        split=context.split,
        environment=lambda: _environment(train, folders),
        rewards=sources,
        source=lambda: _open_data(data, context, folders),
        metrics=_by_source(sources),
    )


def _by_source(sources: Sequence[RewardSource]) -> list[Metric]:
    """The mean of each reward where there are several: their sum alone hides what moved."""
    several = len(sources) > 1
    return [Metric(name=f"reward/{one.name}", part=one.name) for one in sources if several]


def _open_data(data: Data, context: Context, folders: Sequence[Path]) -> DataSource:
    """The split's part where ``evalFraction`` parts the data, else all of it."""
    source = open_source(data, base_dir=context.base_dir, folders=folders)
    return split_data(source, data, context.split) if data.eval_fraction > 0 else source


def _environment(train: Train | None, folders: Sequence[Path]) -> EnvBuilder:
    """The training's environment plays the evaluation's rows too, but a builtin with rows of its own. Tools are training's."""
    if train is None or train.environment is None:
        return SingleTurnBuilder()
    builtin = train.environment.builtin
    if builtin is not None and builtin.name in ENVIRONMENTS_WITH_DATA:
        return add_tools(SingleTurnBuilder(), train.environment, folders)
    return build_environment(train.environment, folders=folders)


def _python(name: str, python: PythonClass, context: Context, folders: Sequence[Path]) -> Suite:
    """A class with ``rows(split)`` and ``score(prompts, completions, rows)``."""
    what = f"suite {python.module}.{python.class_name}"
    parameters = given_parameters(what, python)

    def open_rows() -> DataSource:
        found = load_object(python.class_name, module=python.module, folders=folders)
        with refusing_failures(f"{what}: cannot be built"):
            made = found(**parameters)
        return RowsSource(made.rows(context.split), f"{what}.rows({context.split!r})")

    scorer = RewardSource(
        name=name,
        module=python.module,
        function=python.class_name,
        parameters=parameters,
        folders=tuple(folders),
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=open_rows,
    )


def _plugin(name: str, source: PluginSource, context: Context, folders: Sequence[Path]) -> Suite:
    """A plugin of kind evaluation: its rows are had once, and answers are scored as a plugin's reward is."""
    from rollout.plugins.sidecar.named import open_plugin, parameters_of, reward_argument

    plugin = open_plugin(source, "evaluation", folders, f"evaluation {name}")

    def open_rows() -> DataSource:
        from rollout.plugins.sidecar.kinds.suite import read_rows

        rows = read_rows(plugin, parameters_of(source), context.split)
        return RowsSource(rows, f"plugin {plugin.title}, rows of {context.split}")

    scorer = RewardSource(
        name=name,
        module="rollout.plugins.sidecar.reward",
        function="PluginReward",
        timeout_seconds=PLUGIN_SECONDS,
        parameters={"plugin": reward_argument(plugin, source, PLUGIN_SECONDS)},
        counts="score",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=open_rows,
    )
