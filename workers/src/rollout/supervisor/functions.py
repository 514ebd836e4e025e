"""User functions given in memory, made into files that the actors' reward process can load."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError

SUFFIX = ".pkl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFunctions:
    """``files`` to be loaded, and the ``train.rewards`` entries that name their functions."""

    files: tuple[Path, ...]
    rewards: tuple[dict[str, Any], ...]


def save_functions(functions: Sequence[Callable[..., Any]], folder: Path) -> SavedFunctions:
    """Pickle each function by value into ``folder``. Raises SpecError when one cannot be pickled."""
    import cloudpickle

    files: list[Path] = []
    rewards: list[dict[str, Any]] = []
    for index, function in enumerate(functions):
        name = _name(function, index)
        path = folder / f"{name}{SUFFIX}"
        if path in files:
            raise SpecError(f"two reward functions are named {name!r}; give them different names")
        try:
            path.write_bytes(cloudpickle.dumps(function))
        except Exception as error:
            raise SpecError(
                f"reward function {name!r} cannot be saved for the actors ({error}); "
                "keep open files, locks and clients out of what it refers to"
            ) from error
        files.append(path)
        rewards.append({"python": {"path": str(path), "function": name}, "name": name})
    return SavedFunctions(files=tuple(files), rewards=tuple(rewards))


def _name(function: Callable[..., Any], index: int) -> str:
    name = re.sub(r"\W", "_", getattr(function, "__name__", "")) or f"reward_{index}"
    return name if name[0].isalpha() else f"reward_{index}"
