"""Python files that a manifest names, read beside it before anything is spent: is the file there, and the name in it?

Nothing is imported. A module that lies in no folder of the manifest is left open: it may be installed where
the run will be.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.plugins.reading import read_methods, read_names, read_signature
from rollout.plugins.signatures import describe_mismatch, find_mismatch
from rollout.plugins.user_code import PICKLED
from rollout_api.problems import Problem

NAMES_SHOWN = 8
EPISODES = (frozenset({"build"}), frozenset({"start", "step"}))
SUITES = (frozenset({"rows", "score"}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One name that a manifest expects in a file. ``methods``: one of these sets, for a class.

    ``is_tool``: a function whose arguments are its own.
    """

    field: str
    name: str
    path: str | None
    module: str | None
    parameters: tuple[str, ...] = ()
    methods: tuple[frozenset[str], ...] = ()
    is_tool: bool = False


def check_user_files(spec: Mapping[str, Any], folder: Path) -> Iterator[Problem]:
    """What is wrong with the user's files of a run's spec as written; ``folder`` is the manifest's."""
    for named in _all_named(spec):
        code = (spec.get("code") or {}).get("path")
        file = _find(named, folder, None if code is None else folder / Path(code).expanduser())
        if isinstance(file, Problem):
            yield file
        elif file is not None and file.suffix != PICKLED:
            yield from _check_name(named, file)


def _all_named(spec: Mapping[str, Any]) -> Iterator[Named]:
    train = spec.get("train") or {}
    yield from _rewards(train.get("rewards"), "spec.train.rewards")
    environment = (train.get("environment") or {}).get("python")
    if environment is not None:
        yield _class(environment, "spec.train.environment.python", EPISODES)
    yield from _tools((train.get("environment") or {}).get("tools"))
    for index, item in enumerate(spec.get("evaluations") or ()):
        suite, field = item.get("suite") or {}, f"spec.evaluations[{index}].suite"
        yield from _rewards(suite.get("rewards"), f"{field}.rewards")
        if suite.get("python") is not None:
            yield _class(suite["python"], f"{field}.python", SUITES)


def _rewards(rewards: Any, field: str) -> Iterator[Named]:
    for index, reward in enumerate(rewards or ()):
        python = reward.get("python")
        if python is not None:
            yield Named(
                field=f"{field}[{index}].python",
                name=python["function"],
                path=python.get("path"),
                module=python.get("module"),
                parameters=tuple(one["name"] for one in python.get("parameters") or ()),
            )


def _tools(names: Any) -> Iterator[Named]:
    for index, name in enumerate(names or ()):
        module, _, function = name.rpartition(".")
        if module:
            field = f"spec.train.environment.tools[{index}]"
            yield Named(field=field, name=function, path=None, module=module, is_tool=True)


def _class(python: Mapping[str, Any], field: str, methods: tuple[frozenset[str], ...]) -> Named:
    return Named(
        field=field, name=python["className"], path=None, module=python["module"], methods=methods
    )


def _find(named: Named, folder: Path, code: Path | None) -> Path | Problem | None:
    """The file, what is wrong with where it should be, or None where only a run can tell."""
    if named.path is not None:
        file = folder / Path(named.path).expanduser()
        return file if file.is_file() else _missing_file(named, file)
    if code is None or named.module is None:
        return None
    place = code.joinpath(*named.module.split("."))
    found = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((one for one in found if one.is_file()), None)


def _missing_file(named: Named, file: Path) -> Problem:
    near = sorted(one.name for one in file.parent.glob("*.py")) if file.parent.is_dir() else []
    fix = (
        f"the folder has {', '.join(near[:NAMES_SHOWN])}"
        if near
        else "its folder has no Python file"
    )
    return Problem(
        field=f"{named.field}.path",
        reason="FileNotFound",
        message=f"there is no file {file}",
        fix=f"write a path from the manifest's folder; {fix}",
    )


def _check_name(named: Named, file: Path) -> Iterator[Problem]:
    try:
        names = read_names(file)
    except SpecError as error:
        yield _problem(
            named, "CodeNotParsed", str(error), "correct the file: Python cannot read it"
        )
        return
    if names is None:
        return
    statement = names.get(named.name.partition(".")[0])
    if statement is None:
        near = difflib.get_close_matches(named.name, names, 3) or [*names][:NAMES_SHOWN]
        fix = f"it has {', '.join(near)}" if near else "it is empty"
        yield _problem(named, "NameNotFound", f"{file} has no {named.name!r}", fix)
    elif "." not in named.name:
        yield from _check_use(named, file, statement)


def _check_use(named: Named, file: Path, statement: Any) -> Iterator[Problem]:
    where = f"{file}:{statement.lineno}"
    signature = None if named.methods or named.is_tool else read_signature(statement)
    if signature is not None and (why := find_mismatch(signature, named.parameters)):
        message = f"{where}: {describe_mismatch(named.name, why, named.parameters)}"
        yield _problem(
            named, "WrongArguments", message, "take (prompts, completions, rows, **parameters)"
        )
    methods = read_methods(statement) if named.methods else None
    if methods is not None and not any(wanted <= methods for wanted in named.methods):
        wanted = ", or with ".join(" and ".join(sorted(one)) for one in named.methods)
        message = f"{where}: expected a class with {wanted}; {named.name} has {_listed(methods)}"
        yield _problem(named, "WrongMethods", message, "give it these methods")


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)[:NAMES_SHOWN]) or "none"


def _problem(named: Named, reason: str, message: str, fix: str) -> Problem:
    return Problem(field=named.field, reason=reason, message=message, fix=fix)
