"""Where the rows of a run come from: opened here, or by a process of its own where the author's code gives them.

``open_sources`` runs the author's code where the manifest names some: only the process that may do so calls it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollout.coordinator.plan import HELD_OUT, TaskRows
from rollout.data.build import build_order, build_source
from rollout.data.cursor import DataOrder, place
from rollout.data.lengths import leave_out
from rollout.environments.build import build_environment
from rollout.errors import DataError, DataNotFound, SpecError
from rollout.evaluations.build import build_suite, limit_source
from rollout.plugins.author import author_environment, code_folders
from rollout.plugins.row_host import (
    Connect,
    HostBounds,
    RowHost,
    connect_socket,
    start_child,
)
from rollout.seams import DataSource
from rollout.types import Row
from rollout_api.checks.environment.evaluations import evaluation_name, split_of
from rollout_api.checks.environment.plugins import find_plugins
from rollout_api.v1alpha1.data import PluginRows
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig

TRAIN_ROLE, HELD_OUT_ROLE = "train", "held-out"
LOG = "rows.log"
ROWS_KEPT_MAX = 8192
"""Rows kept in memory between admission and the end of their task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a run reads: training data, evaluations by name and split, and what an offline run measures itself on.

    ``train`` None: the run only evaluates.
    """

    train: DataSource | None
    suites: Mapping[tuple[str, str], DataSource]
    held_out: DataSource | None = None

    def by_role(self) -> dict[str, DataSource]:
        """Every source by its name between processes."""
        suites = {suite_role(*key): source for key, source in self.suites.items()}
        train = {} if self.train is None else {TRAIN_ROLE: self.train}
        held_out = {} if self.held_out is None else {HELD_OUT_ROLE: self.held_out}
        return {**train, **held_out, **suites}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRows:
    """Rows by ordinal: training data in its shuffled order, evaluations as they lie."""

    source: DataSource
    order: DataOrder
    suites: Mapping[tuple[str, str], DataSource]
    held_out: DataSource | None = None

    def train(self, ordinals: Sequence[int]) -> Sequence[Row]:
        """Rows of training tasks. Raises DataError."""
        return self.source.rows([place(self.order, ordinal).position for ordinal in ordinals])

    def evaluation(self, name: str, split: str, positions: Sequence[int]) -> Sequence[Row]:
        """Rows of an evaluation's prompts. Raises DataError."""
        if self.held_out is not None and (name, split) == HELD_OUT:
            return self.held_out.rows(positions)
        if (name, split) not in self.suites:
            raise DataError(
                f"evaluation {name} ({split}) is in the ledger, but not in the manifest any more:"
                " put it back until its prompts are done"
            )
        return self.suites[name, split].rows(positions)


def suite_role(name: str, split: str) -> str:
    """What an evaluation's source is called between processes."""
    return f"suite/{name}/{split}"


def build_rows(config: WorkerConfig, bounds: HostBounds | None = None) -> DataRows:
    """Open the data of training and of every evaluation. Raises SpecError or DataError."""
    train = train_of(config)
    sources = _open(config, bounds)
    assert sources.train is not None
    _require_planned_rows(config, sources.train)
    require_planned_suites(config, sources.suites)
    epochs = train.epochs
    if epochs is None and train.max_steps is None:
        epochs = 1
    shuffle = True if train.data is None else train.data.shuffle
    order = build_order(sources.train, seed=config.spec.seed, shuffle=shuffle, epochs=epochs)
    return DataRows(
        source=sources.train, order=order, suites=sources.suites, held_out=sources.held_out
    )


def open_suites(
    config: WorkerConfig, bounds: HostBounds | None = None
) -> Mapping[tuple[str, str], DataSource]:
    """What a run that only evaluates asks, by name and split. Raises SpecError or DataError."""
    return _open(config, bounds).suites


def _open(config: WorkerConfig, bounds: HostBounds | None) -> Sources:
    apart = config.spec.brings_data_code
    return open_apart(config, bounds) if apart else open_sources(config)


def train_of(config: WorkerConfig) -> Train:
    """The training of a run. Raises SpecError where there is none."""
    if config.spec.train is None:
        raise SpecError("spec.train: this coordinator runs training; infer and evaluate have none")
    return config.spec.train


def _require_planned_rows(config: WorkerConfig, source: DataSource) -> None:
    planned = config.resolved.data_digests.get("train")
    if planned is not None and planned != source.digest:
        data = train_of(config).data
        plugin = None if data is None else data.plugin
        raise DataNotFound(
            f"train.data{_by(plugin)} is {source.digest}, the run was planned for {planned}: the data changed;"
            " put it back, or plan a new run"
        )


def require_planned_suites(
    config: WorkerConfig, suites: Mapping[tuple[str, str], DataSource]
) -> None:
    """Raise DataNotFound for an evaluation whose rows are others than those that the run was planned with."""
    for (name, _), source in suites.items():
        planned = config.resolved.data_digests.get(name)
        if planned is not None and planned != source.digest:
            raise DataNotFound(
                f"the rows of evaluation {name} are {source.digest}, the run was planned for {planned}:"
                " the data changed; put it back, or start a new run"
            )


def _by(plugin: PluginRows | None) -> str:
    """Who gave the rows, where it is a program, which has to give the same ones each time."""
    return "" if plugin is None else f" (plugin {plugin.path})"


# -- in a process of its own ------------------------------------------------------------------------


def open_apart(config: WorkerConfig, bounds: HostBounds | None = None) -> Sources:
    """Have every source opened by a process that may run the author's code. Raises SpecError or DataError."""
    host = RowHost(
        _plan_connection(config, bounds),
        config.model_dump_json(exclude_none=True).encode(),
        name_field(config.spec),
        bounds,
    )
    found: Mapping[str, DataSource] = host.open()
    train = config.spec.train
    keys = [
        (evaluation_name(one, index), split_of(one).lower())
        for index, one in enumerate(config.spec.evaluations)
    ]
    measured = train is not None and train.held_out is not None and not train.algorithm.is_online
    roles = [TRAIN_ROLE] * (train is not None) + [HELD_OUT_ROLE] * measured
    wanted = [*roles, *(suite_role(*key) for key in keys)]
    if missing := [role for role in wanted if role not in found]:
        raise DataError(f"{host.field}: gave no {', '.join(missing)}")
    return Sources(
        train=found[TRAIN_ROLE] if train is not None else None,
        suites={key: found[suite_role(*key)] for key in keys},
        held_out=found[HELD_OUT_ROLE] if measured else None,
    )


def _plan_connection(config: WorkerConfig, bounds: HostBounds | None) -> Connect:
    if config.layout.rows_socket is not None:
        return partial(connect_socket, Path(config.layout.rows_socket), bounds)
    environment = author_environment(os.environ, config.spec)
    logs = Path(config.layout.run_dir) / "logs"
    log = logs / LOG if logs.is_dir() else None
    return lambda: start_child(environment, bounds, log)


def name_field(spec: RolloutRunSpec) -> str:
    """The fields whose code gives rows, for messages."""
    train = spec.train
    environment = train.environment if train is not None else None
    own = None if environment is None else environment.python
    tools = () if environment is None else environment.tools
    named = [("spec.train.environment.python", own)]
    named += [
        (f"spec.evaluations[{index}].suite.python", one.suite.python)
        for index, one in enumerate(spec.evaluations)
    ]
    found = [f"{field} ({one.module}.{one.class_name})" for field, one in named if one is not None]
    found += [f"{field} ({one.path})" for field, one in find_plugins(spec) if _gives_rows(field)]
    found += [f"spec.train.environment.tools ({name})" for name in tools if "." in name]
    return ", ".join(found) or "spec.train.data"


def _gives_rows(field: str) -> bool:
    return field.endswith((".data.plugin", ".suite.plugin"))


# -- in this process --------------------------------------------------------------------------------


def open_sources(config: WorkerConfig) -> Sources:
    """Open everything here, with the author's code. Raises SpecError or DataError."""
    train = config.spec.train
    if train is None:
        return Sources(train=None, suites=_open_suites(config, None))
    source, held_out = _open_training_data(config, train), _open_held_out(config, train)
    _require_one_data_set(train, source, held_out)
    return Sources(train=source, suites=_open_suites(config, train), held_out=held_out)


def _open_training_data(config: WorkerConfig, train: Train) -> DataSource:
    environment = build_environment(train.environment, folders=code_folders(config))
    source = build_source(
        train.data,
        environment,
        seed=config.spec.seed,
        target=train.algorithm.traits.row,
        folders=code_folders(config),
    )
    return leave_out(source, config.resolved.left_out)


def _open_held_out(config: WorkerConfig, train: Train) -> DataSource | None:
    """The rows that an offline run measures itself on. Raises DataError when there are none."""
    if train.held_out is None or train.algorithm.is_online:
        return None
    target = train.algorithm.traits.row
    held_out = build_source(
        train.data,
        part="report",
        seed=config.spec.seed,
        target=target,
        folders=code_folders(config),
    )
    return limit_source(held_out, train.held_out.max_rows)


def _require_one_data_set(train: Train, source: DataSource, held_out: DataSource | None) -> None:
    """A plugin is asked twice, for what is trained on and for what is held out: of other rows the two could overlap."""
    if train.data is None or train.data.plugin is None or held_out is None:
        return
    first, second = (one.digest.partition("/")[0] for one in (source, held_out))
    if first != second:
        raise DataNotFound(
            f"train.data{_by(train.data.plugin)} was {first} when it was asked for training's rows, and {second}"
            " for those that are held out: it has to give the same rows each time"
        )


def _open_suites(config: WorkerConfig, train: Train | None) -> dict[tuple[str, str], DataSource]:
    found: dict[tuple[str, str], DataSource] = {}
    for index, item in enumerate(config.spec.evaluations):
        suite = build_suite(
            item,
            index,
            train=train,
            seed=config.spec.seed,
            folders=code_folders(config),
            models={role: Path(path) for role, path in config.resolved.models.items()},
        )
        found[suite.name, suite.split] = suite.source()
    return found


class RowCache:
    """Rows of training tasks, read ahead outside the event loop."""

    def __init__(self, source: TaskRows) -> None:
        self._source = source
        self._rows: dict[int, Row] = {}

    async def train(self, ordinals: Sequence[int]) -> list[Row]:
        """Rows by ordinal, from memory where they were read ahead. Raises DataError."""
        # Those at hand are taken now: a step that is committed while others are read forgets them.
        found = {ordinal: self._rows[ordinal] for ordinal in ordinals if ordinal in self._rows}
        missing = [ordinal for ordinal in ordinals if ordinal not in found]
        if missing:
            rows = await asyncio.to_thread(self._source.train, missing)
            read = dict(zip(missing, rows, strict=True))
            self._rows.update(read)
            found.update(read)
        return [found[ordinal] for ordinal in ordinals]

    async def evaluation(self, name: str, split: str, positions: Sequence[int]) -> list[Row]:
        """Rows of an evaluation's prompts. Raises DataError."""
        return list(await asyncio.to_thread(self._source.evaluation, name, split, positions))

    def forget_below(self, ordinal: int) -> None:
        """Rows of consumed tasks are not needed again."""
        self._rows = {
            kept: row
            for kept, row in self._rows.items()
            if kept >= ordinal and kept < ordinal + ROWS_KEPT_MAX
        }
