"""What shall be served: ``[NAME=]MODEL`` or ``[NAME=]RUN[@step|@best|@live]``, and the folder that it means now.

A run's weights are exported to a folder of this session, each object verified on the way; a model of a hub or of this
machine is used where it lies. Snapshots are refused: there are none in this version.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollout.errors import SpecError
from rollout.models.pooled import Task, choose_task, read_pooled
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape
from rollout.models.uri import parse_model_uri
from rollout.runs.export.choose import VersionSelector, list_stored, read_run
from rollout.runs.export.export import Export, export_model
from rollout.runs.export.show import is_model
from rollout.runs.run_dir import find_run

SELECTORS = ("live", "best")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,100}")
SNAPSHOT_SCHEMES = ("snapshot://",)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedVersion:
    """Weights that a feed has: ``name`` is of no other weights, ``digest`` theirs."""

    name: str
    digest: str


class VersionFeed(Protocol):
    """A run that is followed from outside: somebody else says which version is its newest."""

    @property
    def run(self) -> str:
        """Name of the run."""
        ...

    def newest(self) -> FedVersion | None:
        """The newest version; None where none is known. Raises SpecError for one that is not this run's."""
        ...

    def fetch(self, version: FedVersion, target: Path) -> Path:
        """A folder with that version, verified. Raises StoreError, SpecError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTarget:
    """One thing to serve. ``uri`` names a model, or ``run`` a run's folder with ``step`` or ``selector`` in it.

    ``revision`` is that of a hub's model, ``digest`` what its weights are told as (None: that of the model's files). ``name`` is the further name that the user gave; ``best`` and ``live`` go on
    following their run. ``feed``: who says what is served, and brings it; then none of the others is set.
    """

    text: str
    name: str | None
    uri: str | None = None
    revision: str | None = None
    digest: str | None = None
    run: Path | None = None
    step: int | None = None
    selector: str | None = None
    feed: VersionFeed | None = None

    @property
    def follows(self) -> bool:
        """Whether what it means changes as its run goes on."""
        return self.selector is not None or self.feed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """A folder that can be served: ``name`` is the version's, ``aliases`` what else it is called, ``task`` what it answers with."""

    name: str
    aliases: tuple[str, ...]
    folder: Path
    digest: str
    context_tokens: int
    created: int
    task: Task = "generate"


def read_target(text: str) -> ServeTarget:
    """Read one argument. Raises SpecError for what is neither a model nor a run."""
    name, _, rest = text.partition("=") if _has_name(text) else ("", "", text)
    given = _checked(name) if name else None
    if rest.startswith(SNAPSHOT_SCHEMES):
        raise SpecError(
            f"{rest}: snapshots cannot be served in this version; name the run and a step of it"
        )
    if "://" in rest:
        parse_model_uri(rest)
        return ServeTarget(text=text, name=given, uri=rest)
    if is_model(Path(rest)):
        return ServeTarget(text=text, name=given, uri=f"file://{Path(rest).absolute()}")
    run, _, selector = rest.partition("@")
    folder = find_run(run)
    read_run(folder)
    if selector in SELECTORS:
        return ServeTarget(text=text, name=given, run=folder, selector=selector)
    if selector and not selector.isdecimal():
        raise SpecError(f"{rest}: expected a step, best or live behind @, got {selector!r}")
    return ServeTarget(text=text, name=given, run=folder, step=int(selector) if selector else None)


def current_step(target: ServeTarget) -> int | None:
    """The step that a target of a run means now; None where the run has none yet. Raises SpecError, LedgerError."""
    assert target.run is not None
    if target.step is not None:
        return target.step
    stored = list_stored(target.run)
    if target.selector == "best":
        return stored.best
    return max(stored.steps, default=None)


def make_newest(
    target: ServeTarget, exports: Path, current: ReadyModel | None, task: Task | None = None
) -> ReadyModel | None:
    """The folder that a target of a run means now; None where that is ``current``, or there is none yet.

    Raises SpecError, LedgerError, StoreError.
    """
    if target.feed is not None:
        return _ready_fed(target, target.feed, exports, current, task)
    step = current_step(target)
    if step is None or (current is not None and current.name.endswith(f"@{step}")):
        return None
    return make_ready(target, exports, step, task)


def make_ready(
    target: ServeTarget, exports: Path, step: int | None = None, task: Task | None = None
) -> ReadyModel:
    """The folder that a target means: of a run, its weights after ``step``.

    ``task`` None: what the model's files say that it is for. Raises SpecError, StoreError.
    """
    if target.uri is not None:
        return _ready_model(target, target.uri, task)
    assert target.run is not None and step is not None
    return _ready_run(target, target.run, step, exports, task)


def _context(folder: Path, task: Task) -> int:
    return read_shape(folder).context if task == "generate" else read_pooled(folder, task).context


def _ready_model(target: ServeTarget, uri: str, wanted: Task | None) -> ReadyModel:
    files = resolve_model(uri, revision=target.revision)
    name = target.name or _checked(parse_model_uri(uri).name.rsplit("/", 1)[-1])
    task = choose_task(files.path, wanted)
    return ReadyModel(
        name=name,
        aliases=(),
        folder=files.path,
        digest=target.digest or files.digest,
        context_tokens=_context(files.path, task),
        created=int(time.time()),
        task=task,
    )


def _ready_run(
    target: ServeTarget, run: Path, step: int, exports: Path, wanted_task: Task | None
) -> ReadyModel:
    merge = read_run(run).spec.model.lora is not None
    wanted = Export(selector=VersionSelector(step=step), merge=merge)
    exported = export_model(run, exports / f"{run.name}-{step}", wanted)
    folder = Path(exported.folder)
    task = choose_task(folder, wanted_task)
    alias = f"{run.name}@{target.selector}" if target.selector else None
    plain = run.name if target.step is None and not target.selector else None
    return ReadyModel(
        name=f"{run.name}@{step}",
        aliases=tuple(one for one in (alias, plain, target.name) if one),
        folder=folder,
        digest=exported.lineage.weights,
        context_tokens=_context(folder, task),
        created=int(time.time()),
        task=task,
    )


def _ready_fed(
    target: ServeTarget,
    feed: VersionFeed,
    exports: Path,
    current: ReadyModel | None,
    wanted: Task | None,
) -> ReadyModel | None:
    version = feed.newest()
    if version is None or (current is not None and current.name == version.name):
        return None
    folder = feed.fetch(version, exports / version.name)
    task = choose_task(folder, wanted)
    return ReadyModel(
        name=version.name,
        aliases=tuple(one for one in (target.name, f"{feed.run}@live") if one),
        folder=folder,
        digest=version.digest,
        context_tokens=_context(folder, task),
        created=int(time.time()),
        task=task,
    )


def _has_name(text: str) -> bool:
    """Whether ``NAME=`` stands before it: a model's own parameters have ``=`` too, behind ``://``."""
    head = text.partition("=")[0]
    return "=" in text and "://" not in head


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is no name for a model: expected letters, digits, dots, dashes and slashes; give one as NAME=MODEL"
        )
    return name
