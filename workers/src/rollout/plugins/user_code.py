"""Finds a user's function or class: in a module, in a file, or pickled by the library.

Runs the user's code at import, so only the process that will call it should load it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rollout.errors import SpecError

PICKLED = ".pkl"


def load_object(
    name: str, *, module: str | None = None, path: str | None = None, folders: Sequence[Path] = ()
) -> Any:
    """The object called ``name`` (dots reach into it).

    Exactly one of ``module`` and ``path`` is given; relative paths and modules are looked for in
    ``folders`` in turn. Raises SpecError saying what failed where, with the user's own line.
    """
    if path is not None:
        found = find_file(path, folders)
        if found.suffix == PICKLED:
            return load_pickled(found)
        return get_attribute(_import_file(found), name, str(found))
    if module is None:
        raise ValueError("give module or path")
    return get_attribute(_import_module(module, folders), name, f"module {module}")


def find_file(path: str, folders: Sequence[Path]) -> Path:
    """The file, absolute or in the first of ``folders`` that has it."""
    tried = [folder / path for folder in folders] or [Path(path)]
    for candidate in tried:
        if candidate.is_file():
            return candidate
    places = ", ".join(dict.fromkeys(str(candidate.absolute()) for candidate in tried))
    raise SpecError(f"python file {path!r} was not found (looked at {places})")


def load_pickled(path: Path) -> Any:
    """A function saved by the library with cloudpickle."""
    with refusing_failures(f"{path} cannot be loaded"), path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by this run's own supervisor


def get_attribute(holder: Any, name: str, where: str) -> Any:
    """``name`` of a module. Raises SpecError listing what the module has."""
    found, missing = holder, object()
    for part in name.split("."):
        with refusing_failures(f"{where}, {name!r}"):
            found = getattr(found, part, missing)
        if found is missing:
            public = [key for key in vars(holder) if not key.startswith("_")][:12]
            raise SpecError(f"{where} has no {name!r}; it has {', '.join(public) or 'nothing'}")
    return found


def _import_file(path: Path) -> ModuleType:
    name = f"rollout_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with refusing_failures(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str, folders: Sequence[Path]) -> ModuleType:
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path[:0] = added
    advice = " (set spec.code to where it lies)"
    with refusing_failures(f"module {name!r} cannot be imported", advice):
        return importlib.import_module(name)


@contextmanager
def refusing_failures(what: str, advice: str = "") -> Iterator[None]:
    """Whatever the user's code raises inside is a SpecError that says what failed and at which line.

    Its own exit (``sys.exit`` at import) too: the process would end with a code that says nothing, and be tried again.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise SpecError(f"{what}: {describe_failure(error)}{advice}") from error


def describe_failure(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero (my_rewards.py:12)``: the innermost line outside us."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    outside = [f for f in frames if not f.filename.startswith((ours, "<frozen"))]
    where = f" ({Path(outside[-1].filename).name}:{outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {error}{where}"
