"""What a user's Python file holds, read and never run: its names, and how a function of it is called.

Whatever only running could tell (a star import, a decorator, a module that makes its names) is left open.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollout.errors import SpecError

SOURCE_BYTES_MAX = 4 << 20
"""A longer file is left to the process that imports it."""
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_names(path: Path) -> Mapping[str, ast.stmt] | None:
    """What the file's names are bound by at its top, the last binding of each; None where that is not known.

    Raises SpecError naming file and line for a file that Python cannot read.
    """
    data = path.read_bytes()
    if len(data) > SOURCE_BYTES_MAX:
        return None
    try:
        tree = ast.parse(data, str(path))
    except SyntaxError as error:
        raise SpecError(f"{path}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{path} is no Python file: {error}") from error
    found = dict(_bindings(tree.body))
    return None if "*" in found or "__getattr__" in found or _makes_names(tree) else found


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for statement in body:
        if isinstance(statement, (_Function, ast.ClassDef)):
            yield statement.name, statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for one in statement.names:
                yield one.asname or one.name.partition(".")[0], statement
        elif isinstance(statement, _BLOCKS):
            yield from _bindings(_inner(statement))
        else:
            yield from ((name, statement) for name in _assigned(statement))


def _inner(statement: ast.stmt) -> list[ast.stmt]:
    """The statements of a block, those of its ``except`` parts included."""
    parts = list(ast.iter_child_nodes(statement))
    parts += [one for part in parts if isinstance(part, ast.ExceptHandler) for one in part.body]
    return [one for one in parts if isinstance(one, ast.stmt)]


def _assigned(statement: ast.AST) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _makes_names(tree: ast.Module) -> bool:
    """Whether names may come to be that nobody has written: ``globals()``, ``exec``, ``setattr``."""
    makers = {"globals", "vars", "exec", "setattr", "locals"}
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in makers for called in calls)


def read_signature(statement: ast.stmt) -> inspect.Signature | None:
    """How a plain function is called; None for anything else."""
    if not isinstance(statement, ast.FunctionDef) or statement.decorator_list:
        return None
    given = statement.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    kinds = inspect.Parameter
    parameters = [
        _parameter(one, index < len(given.posonlyargs), index >= required)
        for index, one in enumerate(positional)
    ]
    if given.vararg is not None:
        parameters.append(kinds(given.vararg.arg, kinds.VAR_POSITIONAL))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        known = kinds.empty if default is None else None
        parameters.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=known))
    if given.kwarg is not None:
        parameters.append(kinds(given.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _parameter(one: ast.arg, only_positional: bool, has_default: bool) -> inspect.Parameter:  # noqa: FBT001 - read off a list
    kinds = inspect.Parameter
    kind = kinds.POSITIONAL_ONLY if only_positional else kinds.POSITIONAL_OR_KEYWORD
    return kinds(one.arg, kind, default=None if has_default else kinds.empty)


def read_methods(statement: ast.stmt) -> frozenset[str] | None:
    """The methods of a class that stands by itself; None where others may add some."""
    if not isinstance(statement, ast.ClassDef) or statement.bases or statement.keywords:
        return None
    if statement.decorator_list:
        return None
    names = frozenset(name for name, _ in _bindings(statement.body))
    return None if "__getattr__" in names else names
