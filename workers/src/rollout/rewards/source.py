"""What names a source of reward, in a form that travels to the child process that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.plugins.signatures import describe_mismatch, find_mismatch
from rollout.plugins.user_code import load_object, refusing_failures
from rollout.rewards.builtins import build_builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """A builtin by name, or a function of a module or file found in ``folders``.

    A class is constructed with ``parameters`` and its ``score`` is called (or the object itself).
    ``name`` is its name in metrics; ``timeout_seconds`` bounds one batch. ``counts``: of named values this one
    is the reward, the others are kept beside it; None: their sum is.
    """

    name: str
    weight: float = 1.0
    timeout_seconds: float = 60.0
    builtin: str | None = None
    module: str | None = None
    path: str | None = None
    function: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()
    counts: str | None = None

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
            function = getattr(made, "score", made)
        _require_callable(source, function, ())
        return function
    _require_callable(source, found, source.parameters)
    return partial(found, **source.parameters) if source.parameters else found


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
