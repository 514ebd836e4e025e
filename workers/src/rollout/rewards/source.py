"""What names a source of reward, in a form that travels to the child process that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from rollout.errors import SpecError
from rollout.plugins.signatures import describe_mismatch, find_mismatch
from rollout.plugins.user_code import load_object, refusing_failures
from rollout.rewards.builtins import build_builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMark:
    """A value that a reward must reach for the others to count."""

    at_least: float
    """The value, before weighting."""
    else_total: float | None = None
    """The whole reward where it is missed; None: its own part alone counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """A builtin by name, or a function of a module or file found in ``folders``.

    A class is constructed with ``parameters`` and its ``score`` is called (or the object itself).
    """

    name: str
    """In metrics and rewards."""
    weight: float = 1.0
    """Its value's factor in the reward."""
    timeout_seconds: float = 60.0
    """Bounds one call."""
    builtin: str | None = None
    """Name of one that rollout ships; None: a user's."""
    module: str | None = None
    """Of the user's function; None: it lies in ``path``."""
    path: str | None = None
    """File of the user's function, below one of ``folders``; None: it lies in ``module``."""
    function: str = ""
    """Of that module or file; empty for a builtin."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """As the spec has them; of a function those beyond its three arguments."""
    folders: Sequence[Path] = ()
    """Where modules and files are looked for, in order."""
    counts: str | None = None
    """Of named values this one is the reward, the others are kept beside it; None: their sum is."""
    gate: PassMark | None = None
    """It decides whether others count; None: it does not."""
    at_least: float | None = None
    """Least that it adds, after its weight; None: no bound."""
    at_most: float | None = None
    """Most that it adds, after its weight; None: no bound."""
    per_group: bool = False
    """It is called with all samples of one group, a class by ``score_group``, where it has one."""
    batch_size: int | None = None
    """Samples of one call; None: one call for all."""
    concurrency: int = 1
    """Processes, >= 1."""
    retries: int = 0
    """Further tries of what lies outside, >= 0."""
    cache_entries: int = 0
    """Answers that are kept; 0: none."""

    @property
    def origin(self) -> str:
        """Where a person finds it: ``brevity in my_rewards.py``."""
        if self.builtin is not None:
            return f"builtin {self.builtin}"
        return f"{self.function} in {self.path or self.module}"


def load_reward(source: RewardSource) -> Any:
    """The callable. Runs the user's module. Raises SpecError."""
    if source.builtin is not None:
        return build_builtin(source.builtin, source.parameters)
    found = load_object(
        source.function, module=source.module, path=source.path, folders=source.folders
    )
    if isinstance(found, type):
        with refusing_failures(f"{source.origin}: cannot be built"):
            made = found(**source.parameters)
            function = _method(made, per_group=source.per_group)
        _require_callable(source, function, ())
        return function
    _require_callable(source, found, source.parameters)
    return partial(found, **source.parameters) if source.parameters else found


def _method(made: Any, *, per_group: bool) -> Any:
    """What is called of an object: for whole groups ``score_group``, where it has one; else ``score``, or itself."""
    own = getattr(made, "score_group", None) if per_group else None
    return own if own is not None else getattr(made, "score", made)


def _require_callable(source: RewardSource, function: Any, parameters: Iterable[str]) -> None:
    """Raise SpecError for a function that no batch can be given to: before the first one is sampled."""
    if not callable(function):
        raise SpecError(f"{source.origin}: expected a function, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # One of another language says nothing of how it is called.
    if why := find_mismatch(signature, parameters):
        raise SpecError(f"{source.origin}: {describe_mismatch(source.function, why, parameters)}")


def code_digest(source: RewardSource) -> str:
    """The digest of the file that holds the user's function; empty for what rollout ships. What it imports is not looked at."""
    names = [] if source.path is None else [source.path]
    if source.module is not None:
        stem = source.module.replace(".", "/")
        names += [f"{stem}.py", f"{stem}/__init__.py"]
    files = (Path(folder) / name for folder in source.folders for name in names)
    found = next((file for file in files if file.is_file()), None)
    return "" if found is None else blake3(found.read_bytes()).hexdigest()
